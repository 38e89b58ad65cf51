// What can be done with the page: point at values, hide runs, sort tables, change scales. Without it everything is shown.
"use strict";
(() => {
  const all = (where, what) => [...where.querySelectorAll(what)];
  const tip = document.querySelector(".tip");
  const numbers = (text) => (text || "").split(" ").map((word) => (word === "" ? NaN : Number(word)));
  const told = (value, percent) => {
    if (!Number.isFinite(value)) return "–";
    if (percent) return `${Number((100 * value).toPrecision(4))} %`;
    const size = Math.abs(value);
    const short = size && (size < 1e-3 || size >= 1e5) ? value.toExponential(3) : String(Number(value.toPrecision(4)));
    return short.replace("-", "−");
  };

  // a box beside the pointer, which holds text alone
  const say = (lines, x, y) => {
    tip.replaceChildren(
      ...lines.map(({ text, run }) => {
        const line = document.createElement("div");
        if (run !== undefined) {
          const dot = document.createElement("span");
          dot.className = "dot-of";
          dot.style.background = `var(--run-${run % 6})`;
          line.append(dot);
        }
        line.append(text);
        return line;
      }),
    );
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = x + 14 + box.width > innerWidth ? x - 14 - box.width : x + 14;
    const top = y + 14 + box.height > innerHeight ? y - 14 - box.height : y + 14;
    tip.style.left = `${Math.max(4, left) + scrollX}px`;
    tip.style.top = `${Math.max(4, top) + scrollY}px`;
  };
  const hush = () => (tip.hidden = true);
  window.saltflat = { say, hush, told };

  // lines: the nearest point decides where; every run that has a point there is told
  const points = (svg) =>
    all(svg, ".s[data-px]").filter((group) => !group.classList.contains("off")).map((group) => ({
      run: Number(group.dataset.run),
      name: group.dataset.name,
      px: numbers(group.dataset.px),
      py: numbers(group.dataset.py),
      vx: numbers(group.dataset.vx),
      vy: numbers(group.dataset.vy),
      ve: group.dataset.ve ? numbers(group.dataset.ve) : null,
    }));
  const nearest = (line, x) => {
    let best = -1;
    line.px.forEach((px, k) => {
      if (Number.isFinite(px) && Number.isFinite(line.py[k]) && (best < 0 || Math.abs(px - x) < Math.abs(line.px[best] - x))) best = k;
    });
    return best;
  };
  const pointAt = (svg, x, y) => {
    const lines = points(svg).map((line) => ({ ...line, at: nearest(line, x) })).filter((line) => line.at >= 0);
    if (!lines.length) return hush();
    const away = (line) => Math.abs(line.px[line.at] - x);
    const first = lines.reduce((a, b) => (away(a) <= away(b) ? a : b));
    const where = first.px[first.at];
    const there = lines.filter((line) => Math.abs(line.px[line.at] - where) < 3);
    there.sort((a, b) => Math.abs(a.py[a.at] - y) - Math.abs(b.py[b.at] - y));
    const percent = svg.dataset.percent || "";
    const rows = there.slice(0, 6).map((line) => {
      const error = line.ve && Number.isFinite(line.ve[line.at]) ? ` ± ${told(line.ve[line.at], percent.includes("y"))}` : "";
      return { run: line.run, text: `${line.name}: ${told(line.vy[line.at], percent.includes("y"))}${error}` };
    });
    let cross = svg.querySelector(".cross");
    if (!cross) {
      cross = document.createElementNS("http://www.w3.org/2000/svg", "path");
      cross.setAttribute("class", "cross");
      svg.append(cross);
    }
    cross.setAttribute("d", `M${where},26V222`);
    const box = svg.getBoundingClientRect(), unit = box.width / svg.viewBox.baseVal.width;
    say([{ text: `${svg.dataset.x} ${told(first.vx[first.at], percent.includes("x"))}` }, ...rows],
      box.left + where * unit, box.top + first.py[first.at] * unit);
    svg.dataset.at = where;
  };
  const leave = (svg) => {
    svg.querySelector(".cross")?.remove();
    hush();
  };
  const place = (svg, event) => {
    const box = svg.getBoundingClientRect(), unit = svg.viewBox.baseVal.width / box.width;
    return [(event.clientX - box.left) * unit, (event.clientY - box.top) * unit];
  };
  for (const svg of all(document, "svg.chart")) {
    svg.addEventListener("pointermove", (event) => pointAt(svg, ...place(svg, event)));
    svg.addEventListener("pointerdown", (event) => pointAt(svg, ...place(svg, event)));
    svg.addEventListener("pointerleave", () => leave(svg));
    svg.addEventListener("blur", () => leave(svg));
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      const spots = [...new Set(points(svg).flatMap((line) => line.px.filter(Number.isFinite)))].sort((a, b) => a - b);
      const now = spots.findIndex((spot) => spot >= Number(svg.dataset.at ?? -1) - 0.01);
      const next = svg.dataset.at === undefined ? 0 : Math.min(Math.max(now + step, 0), spots.length - 1);
      pointAt(svg, spots[next], 0);
    });
  }

  // maps: the loss of the grid point under the pointer
  const source = document.getElementById("surface-data");
  const data = source ? JSON.parse(source.textContent) : null;
  for (const svg of all(document, "svg.map[data-surface]")) {
    const surface = data?.surfaces[Number(svg.dataset.surface)];
    if (!surface) continue;
    const [left, top, side] = numbers(svg.dataset.box);
    const show = (event) => {
      const [x, y] = place(svg, event);
      const [a, b] = [(x - left) / side, 1 - (y - top) / side];
      if (a < 0 || a > 1 || b < 0 || b > 1) return hush();
      const i = Math.round(a * (surface.x.length - 1)), j = Math.round(b * (surface.y.length - 1));
      const loss = surface.loss[i][j];
      say([{ text: `first ${told(surface.x[i])}, second ${told(surface.y[j])}` },
        { run: surface.run, text: `${surface.name}: loss ${loss === null ? "not finite" : told(loss)}` }],
        event.clientX, event.clientY);
    };
    svg.addEventListener("pointermove", show);
    svg.addEventListener("pointerdown", show);
    svg.addEventListener("pointerleave", hush);
  }

  // a run is hidden on the whole page, by any of its buttons
  const toggle = (run) => {
    const buttons = all(document, `button[data-run="${run}"]`);
    const shown = buttons[0].getAttribute("aria-pressed") !== "true";
    for (const button of buttons) button.setAttribute("aria-pressed", String(shown));
    for (const each of all(document, `.s[data-run="${run}"], figure[data-run="${run}"], .card[data-run="${run}"]`)) {
      each.classList.toggle("off", !shown);
    }
  };
  for (const button of all(document, "button[data-run]")) {
    button.addEventListener("click", () => toggle(button.dataset.run));
  }

  // the other scale of a chart
  for (const button of all(document, "button.scale")) {
    const both = all(button.closest("figure"), "svg.chart");
    const name = () => (button.textContent = both.find((svg) => svg.hasAttribute("hidden")).classList.contains("log") ? "Logarithmic" : "Linear");
    button.addEventListener("click", () => {
      for (const svg of both) svg.toggleAttribute("hidden");
      name();
    });
    name();
  }

  // tables: a head is a button that sorts, up and then down; numbers as numbers, also 3.2·10⁻⁵
  const small = "⁰¹²³⁴⁵⁶⁷⁸⁹";
  const value = (text) => {
    const plain = text.replace(/★/g, "").replace(/−/g, "-").trim();
    const power = plain.match(/^(-?[\d.]+·)?10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)/);
    if (power) {
      const digits = [...power[2]].map((c) => (c === "⁻" ? "-" : small.indexOf(c))).join("");
      return (power[1] ? parseFloat(power[1]) : 1) * 10 ** Number(digits);
    }
    const found = plain.replace(/,(?=\d{3})/g, "").match(/^-?\d+(\.\d+)?/);
    return found ? Number(found[0]) : NaN;
  };
  const compare = (a, b) => {
    const [x, y] = [value(a), value(b)];
    if (Number.isFinite(x) && Number.isFinite(y)) return x - y;
    if (Number.isFinite(x) !== Number.isFinite(y)) return Number.isFinite(x) ? -1 : 1;
    return a.localeCompare(b, "en", { numeric: true });
  };
  for (const table of all(document, "table.sortable")) {
    const heads = all(table, "thead th");
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const each of heads) each.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const body = table.tBodies[0];
        const rows = [...body.rows].sort((a, b) => compare(a.cells[column].textContent, b.cells[column].textContent));
        body.append(...(down ? rows.reverse() : rows));
      });
    });
  }
  document.documentElement.classList.add("scripted");
})();
