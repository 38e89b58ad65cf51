// Surfaces that can be turned: all of them together, by dragging, by arrow keys, by the buttons.
"use strict";
(() => {
  const holder = document.getElementById("surfaces");
  const source = document.getElementById("surface-data");
  if (!holder || !source) return;
  const data = JSON.parse(source.textContent);
  const canvases = [...holder.querySelectorAll("canvas")];
  if (!canvases.length || !canvases[0].getContext("2d")) return;
  const start = { turn: -0.95, tilt: 0.55 };
  let view = { ...start };

  // cividis at equal distances: dark blue to yellow, the same for all kinds of colour vision
  const stops = [[0, 34, 78], [53, 69, 108], [102, 105, 112], [148, 142, 119], [200, 184, 102], [254, 232, 56]];
  const colour = (height) => {
    const at = Math.min(Math.max(height, 0), 1) * (stops.length - 1);
    const from = Math.min(Math.floor(at), stops.length - 2);
    const mixed = stops[from].map((c, k) => Math.round(c + (stops[from + 1][k] - c) * (at - from)));
    return `rgb(${mixed.join(",")})`;
  };

  // a point of the box [-1, 1] x [-1, 1] x [0, 1] on the screen, and how near it is
  const seen = (x, y, z) => {
    const [c, s] = [Math.cos(view.turn), Math.sin(view.turn)];
    const [across, away, up] = [x * c - y * s, x * s + y * c, 1.3 * (z - 0.5)];
    const [low, high] = [Math.sin(view.tilt), Math.cos(view.tilt)];
    return { across, down: -away * low - up * high, near: up * low - away * high };
  };

  const cells = (surface) => {
    const found = [];
    for (let i = 0; i + 1 < surface.x.length; i++) {
      for (let j = 0; j + 1 < surface.y.length; j++) {
        const corners = [[i, j], [i + 1, j], [i + 1, j + 1], [i, j + 1]];
        if (corners.some(([a, b]) => surface.z[a][b] === null)) continue;
        const points = corners.map(([a, b]) => seen(surface.x[a], surface.y[b], surface.z[a][b]));
        const height = corners.reduce((sum, [a, b]) => sum + surface.z[a][b], 0) / 4;
        found.push({ points, height, near: points.reduce((sum, p) => sum + p.near, 0) });
      }
    }
    return found.sort((a, b) => a.near - b.near);
  };

  const draw = (canvas, surface) => {
    const wide = canvas.clientWidth, tall = canvas.clientHeight;
    if (!wide || !tall) return;
    const style = getComputedStyle(canvas);
    const sharp = window.devicePixelRatio || 1;
    canvas.width = Math.round(wide * sharp);
    canvas.height = Math.round(tall * sharp);
    const pen = canvas.getContext("2d");
    pen.scale(sharp, sharp);
    pen.font = `12px ${style.fontFamily}`;
    const margin = 10 + Math.max(...[data.low, data.high].map((text) => pen.measureText(text).width));
    const unit = Math.min((wide - 2 * margin) / 2.84, tall / 2.75);
    const place = (p) => [wide / 2 + p.across * unit, tall / 2 + p.down * unit];
    const path = (points) => {
      pen.beginPath();
      points.forEach((p, k) => (k ? pen.lineTo(...place(p)) : pen.moveTo(...place(p))));
    };
    const ink = style.getPropertyValue("--ink"), faint = style.getPropertyValue("--faint");
    pen.lineWidth = 1;
    pen.strokeStyle = faint;
    path([[-1, -1], [1, -1], [1, 1], [-1, 1], [-1, -1]].map(([x, y]) => seen(x, y, 0)));
    pen.stroke();
    pen.lineJoin = "round";
    for (const cell of cells(surface)) {
      path(cell.points);
      pen.closePath();
      pen.fillStyle = pen.strokeStyle = colour(cell.height);
      pen.fill();
      pen.lineWidth = 0.6; // closes the gaps between cells
      pen.stroke();
      pen.globalAlpha = 0.3;
      pen.strokeStyle = ink;
      pen.lineWidth = 0.4;
      pen.stroke();
      pen.globalAlpha = 1;
    }
    axes(pen, place, ink, faint, wide);
  };

  // names of the axes at the near edges of the floor, and the upright at the left
  const axes = (pen, place, ink, faint, wide) => {
    pen.fillStyle = ink;
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    const middle = (sides) => sides.sort((a, b) => b.near - a.near)[0];
    const label = (text, p) => {
      const [x, y] = place(p);
      const long = pen.measureText(text).width;
      const from = x - long * (p.across < -0.15 ? 1 : p.across > 0.15 ? 0 : 0.5);
      pen.fillText(text, Math.min(Math.max(from, 2), wide - long - 2), y); // never past the edge
    };
    label("first direction", middle([-1.14, 1.14].map((y) => seen(0, y, 0))));
    label("second direction", middle([-1.14, 1.14].map((x) => seen(x, 0, 0))));
    const corners = [[-1, -1], [1, -1], [1, 1], [-1, 1]];
    const [x, y] = corners.sort((a, b) => seen(...a, 0).across - seen(...b, 0).across)[0];
    const [foot, top] = [place(seen(x, y, 0)), place(seen(x, y, 1))];
    pen.strokeStyle = faint;
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(...foot);
    pen.lineTo(...top);
    pen.stroke();
    pen.textAlign = "right";
    pen.fillText(data.low, foot[0] - 6, foot[1]);
    pen.fillText(data.high, top[0] - 6, top[1]);
    pen.fillText("loss", top[0] - 6, top[1] - 16);
  };

  let asked = false;
  const again = () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      canvases.forEach((canvas, k) => draw(canvas, data.surfaces[k]));
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
  const keys = {
    ArrowLeft: () => move(-0.1, 0),
    ArrowRight: () => move(0.1, 0),
    ArrowUp: () => move(0, 0.08),
    ArrowDown: () => move(0, -0.08),
    Home: reset,
  };
  for (const canvas of canvases) {
    let held = null;
    canvas.addEventListener("pointerdown", (event) => {
      held = event;
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!held || held.pointerId !== event.pointerId) return;
      move((event.clientX - held.clientX) * 0.01, (event.clientY - held.clientY) * 0.008);
      held = event;
    });
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => (held = null));
    canvas.addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey || !keys[event.key]) return;
      event.preventDefault(); // else the page would scroll
      keys[event.key]();
    });
  }
  for (const button of holder.querySelectorAll("button")) {
    button.addEventListener("click", () => keys[button.dataset.key]());
  }
  holder.classList.add("live");
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  new ResizeObserver(again).observe(holder);
  again();
})();
