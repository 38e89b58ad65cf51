// Surfaces that can be turned: all of them together, by dragging, by arrow keys, by the buttons.
"use strict";
(() => {
  const holder = document.getElementById("surfaces");
  const source = document.getElementById("surface-data");
  if (!holder || !source) return;
  const data = JSON.parse(source.textContent);
  const canvases = [...holder.querySelectorAll("canvas[data-surface]")];
  const shownBy = (canvas) => data.surfaces[Number(canvas.dataset.surface)];
  if (!canvases.length || !canvases[0].getContext("2d")) return;
  const start = { turn: -0.95, tilt: 0.55 };
  const shades = 16;
  let view = { ...start };
  for (const scale of data.scales) if (scale) scale.log = scale.log && scale.low > 0;
  let colours = [];
  const { say, hush, told } = window.saltflat;

  const scaleOf = (surface) => data.scales[surface.scale];
  const height = (scale, loss) => {
    if (loss === null || (scale.log && !(loss > 0))) return null;
    const [low, high, value] = scale.log ? [scale.low, scale.high, loss].map(Math.log) : [scale.low, scale.high, loss];
    return Math.min(Math.max((value - low) / (high - low), 0), 1);
  };
  const lossAt = ({ low, high, log }, part) => (log ? low * (high / low) ** part : low + (high - low) * part);
  const colour = (part) => colours[Math.round(part * (shades - 1))];
  const across = (values, value) => (2 * (value - values[0])) / (values[values.length - 1] - values[0] || 1) - 1;

  // a point of the box [-1, 1] x [-1, 1] x [0, 1] on the screen, and how near it is
  const seen = (x, y, z) => {
    const [c, s] = [Math.cos(view.turn), Math.sin(view.turn)];
    const [right, away, up] = [x * c - y * s, x * s + y * c, 1.3 * (z - 0.5)];
    const [low, high] = [Math.sin(view.tilt), Math.cos(view.tilt)];
    return { across: right, down: -away * low - up * high, near: up * low - away * high };
  };

  const cells = (surface) => {
    const found = [];
    const z = surface.loss.map((row) => row.map((loss) => height(scaleOf(surface), loss)));
    const [xs, ys] = [surface.x, surface.y].map((side) => side.map((value) => across(side, value)));
    for (let i = 0; i + 1 < xs.length; i++) {
      for (let j = 0; j + 1 < ys.length; j++) {
        const corners = [[i, j], [i + 1, j], [i + 1, j + 1], [i, j + 1]];
        if (corners.some(([a, b]) => z[a][b] === null)) continue;
        const points = corners.map(([a, b]) => seen(xs[a], ys[b], z[a][b]));
        const mean = corners.reduce((sum, [a, b]) => sum + z[a][b], 0) / 4;
        found.push({ points, mean, near: points.reduce((sum, p) => sum + p.near, 0) });
      }
    }
    return found.sort((a, b) => a.near - b.near);
  };

  // the height of a surface above any point of its plane, between the grid's
  const above = (surface, a, b) => {
    const spot = (values, value) => ((across(values, value) + 1) / 2) * (values.length - 1);
    const [u, v] = [spot(surface.x, a), spot(surface.y, b)];
    const [i, j] = [Math.floor(u), Math.floor(v)].map((k, side) => Math.min(Math.max(k, 0), [surface.x, surface.y][side].length - 2));
    const four = [[0, 0], [1, 0], [0, 1], [1, 1]].map(([p, q]) => height(scaleOf(surface), surface.loss[i + p][j + q]));
    if (u < -0.001 || v < -0.001 || u > surface.x.length - 0.999 || v > surface.y.length - 0.999 || four.includes(null)) return null;
    const [s, t] = [u - i, v - j];
    return four[0] * (1 - s) * (1 - t) + four[1] * s * (1 - t) + four[2] * (1 - s) * t + four[3] * s * t;
  };

  const draw = (canvas, surface) => {
    const wide = canvas.clientWidth, tall = canvas.clientHeight;
    if (!wide || !tall) return;
    const style = getComputedStyle(canvas);
    colours = Array.from({ length: shades }, (_, k) => style.getPropertyValue(`--map-${k}`));
    const [ink, faint, paper] = ["--ink", "--faint", "--paper"].map((name) => style.getPropertyValue(name));
    const sharp = window.devicePixelRatio || 1;
    canvas.width = Math.round(wide * sharp);
    canvas.height = Math.round(tall * sharp);
    const pen = canvas.getContext("2d");
    pen.scale(sharp, sharp);
    pen.font = `12px ${style.fontFamily}`;
    const words = [0, 0.5, 1].map((part) => told(Number(lossAt(scaleOf(surface), part).toPrecision(3))));
    const margin = 12 + Math.max(...words.map((text) => pen.measureText(text).width));
    const unit = Math.min((wide - 2 * margin) / 2.84, tall / 2.85);
    const place = (p) => [wide / 2 + p.across * unit, tall / 2 - 4 + p.down * unit];
    const path = (points) => {
      pen.beginPath();
      points.forEach((p, k) => (k ? pen.lineTo(...place(p)) : pen.moveTo(...place(p))));
    };
    pen.strokeStyle = faint;
    pen.lineWidth = 1;
    path([[-1, -1], [1, -1], [1, 1], [-1, 1], [-1, -1]].map(([x, y]) => seen(x, y, 0)));
    pen.stroke();
    for (const cell of cells(surface)) {
      path(cell.points);
      pen.closePath();
      pen.fillStyle = pen.strokeStyle = colour(cell.mean);
      pen.fill();
      pen.lineWidth = 0.6; // closes the gaps between cells
      pen.stroke();
      pen.globalAlpha = 0.35;
      pen.strokeStyle = paper;
      pen.lineWidth = 0.5;
      pen.stroke();
      pen.globalAlpha = 1;
    }
    route(pen, place, surface, ink, paper);
    axes(pen, place, surface, words, ink, wide);
    canvas.spots = spots(surface, place);
  };

  // the way of training on the surface, and the model at its end
  const route = (pen, place, surface, ink, paper) => {
    const on = ([a, b]) => {
      const z = above(surface, a, b);
      return z === null ? null : place(seen(across(surface.x, a), across(surface.y, b), z));
    };
    const way = surface.way.map(on);
    for (const [colour_, width] of [[paper, 4.5], [ink, 1.8]]) {
      pen.strokeStyle = colour_;
      pen.lineWidth = width;
      pen.beginPath();
      way.forEach((p, k) => p && (k && way[k - 1] ? pen.lineTo(...p) : pen.moveTo(...p)));
      pen.stroke();
    }
    const end = on([0, 0]);
    if (!end) return;
    pen.beginPath();
    pen.arc(...end, 5, 0, 2 * Math.PI);
    pen.fillStyle = paper;
    pen.fill();
    pen.strokeStyle = ink;
    pen.lineWidth = 2;
    pen.stroke();
    pen.lineWidth = 3;
    pen.strokeStyle = paper;
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    pen.strokeText("model", end[0] + 9, end[1] - 9);
    pen.fillStyle = ink;
    pen.fillText("model", end[0] + 9, end[1] - 9);
  };

  // a few round numbers inside a range, away from its ends, where the axes meet
  const round = (low, high) => {
    const rough = (high - low) / 4, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((k) => k * power >= rough * 0.999) * power;
    const found = [];
    for (let k = Math.ceil(low / step); k * step <= high; k++) {
      const value = Number((k * step).toPrecision(6));
      if (value - low > 0.08 * (high - low) && high - value > 0.08 * (high - low)) found.push(value);
    }
    return found;
  };

  // names and ticks of the axes at the near edges of the floor, and the upright at the left
  const axes = (pen, place, surface, words, ink, wide) => {
    pen.fillStyle = ink;
    pen.strokeStyle = ink;
    pen.lineWidth = 1;
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    const near = (sides) => sides.sort((a, b) => seen(...b, 0).near - seen(...a, 0).near)[0];
    const label = (text, p) => {
      const [x, y] = place(p);
      const long = pen.measureText(text).width;
      const from = x - long * (p.across < -0.15 ? 1 : p.across > 0.15 ? 0 : 0.5);
      pen.fillText(text, Math.min(Math.max(from, 2), wide - long - 2), y); // never past the edge
    };
    const side = (name, values, at, edge) => {
      label(name, seen(...at(0, 1.4 * edge), 0));
      for (const value of round(values[0], values[values.length - 1])) {
        const part = across(values, value);
        const [a, b] = [place(seen(...at(part, edge), 0)), place(seen(...at(part, 1.05 * edge), 0))];
        pen.beginPath();
        pen.moveTo(...a);
        pen.lineTo(...b);
        pen.stroke();
        label(told(value), seen(...at(part, 1.14 * edge), 0));
      }
    };
    side("first direction", surface.x, (t, edge) => [t, edge], near([[0, -1], [0, 1]])[1]);
    side("second direction", surface.y, (t, edge) => [edge, t], near([[-1, 0], [1, 0]])[0]);
    const corners = [[-1, -1], [1, -1], [1, 1], [-1, 1]];
    const [x, y] = corners.sort((a, b) => seen(...a, 0).across - seen(...b, 0).across)[0];
    pen.textAlign = "right";
    pen.beginPath();
    pen.moveTo(...place(seen(x, y, 0)));
    pen.lineTo(...place(seen(x, y, 1)));
    pen.stroke();
    words.forEach((word, k) => {
      const [left, top] = place(seen(x, y, k / 2));
      pen.beginPath();
      pen.moveTo(left, top);
      pen.lineTo(left - 4, top);
      pen.stroke();
      pen.fillText(word, left - 7, top);
    });
    const [left, top] = place(seen(x, y, 1));
    const name = scaleOf(surface).log ? "loss (logarithmic)" : "loss (linear)";
    pen.textAlign = "left";
    pen.fillText(name, Math.max(2, left - 40), Math.max(8, top - 16));
  };

  // where the points of the grid are on the screen, to tell the loss of one
  const spots = (surface, place) =>
    surface.x.flatMap((a, i) =>
      surface.y.map((b, j) => {
        const z = height(scaleOf(surface), surface.loss[i][j]);
        return z === null ? null : { at: place(seen(across(surface.x, a), across(surface.y, b), z)), a, b, loss: surface.loss[i][j] };
      }),
    ).filter(Boolean);
  const point = (canvas, surface, event) => {
    const box = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const away = (spot) => Math.hypot(spot.at[0] - x, spot.at[1] - y);
    const best = (canvas.spots || []).reduce((a, b) => (a && away(a) <= away(b) ? a : b), null);
    if (!best || away(best) > 14) return hush();
    say([{ text: `first ${told(best.a)}, second ${told(best.b)}` }, { run: surface.run, text: `${surface.name}: loss ${told(best.loss)}` }],
      event.clientX, event.clientY);
  };

  let asked = false;
  const again = () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      for (const canvas of canvases) draw(canvas, shownBy(canvas));
    });
  };
  const move = (turn, tilt) => {
    view.turn += turn;
    view.tilt = Math.min(Math.max(view.tilt + tilt, 0.05), 1.5);
    again();
  };
  const reset = () => {
    view = { ...start };
    again();
  };
  const scale = () => {
    const next = !data.scales.find(Boolean).log;
    for (const each of data.scales) if (each) each.log = next && each.low > 0;
    again();
  };
  const keys = {
    ArrowLeft: () => move(-0.1, 0),
    ArrowRight: () => move(0.1, 0),
    ArrowUp: () => move(0, 0.08),
    ArrowDown: () => move(0, -0.08),
    Home: reset,
  };
  canvases.forEach((canvas) => {
    let held = null;
    canvas.addEventListener("pointerdown", (event) => {
      held = event;
      hush();
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!held || held.pointerId !== event.pointerId) return point(canvas, shownBy(canvas), event);
      move((event.clientX - held.clientX) * 0.01, (event.clientY - held.clientY) * 0.008);
      held = event;
    });
    canvas.addEventListener("pointerleave", hush);
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => (held = null));
    canvas.addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey || !keys[event.key]) return;
      event.preventDefault(); // else the page would scroll
      keys[event.key]();
    });
  });
  for (const button of holder.querySelectorAll(".turn button")) {
    button.addEventListener("click", () => (button.dataset.key === "Scale" ? scale() : keys[button.dataset.key]()));
    if (button.dataset.key === "Scale" && !data.scales.some((each) => each && each.low > 0)) button.hidden = true;
  }
  holder.classList.add("live");
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  new ResizeObserver(again).observe(holder);
  again();
})();
