"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const make = (tag, props = {}, ...children) => {
    const node = Object.assign(document.createElement(tag), props);
    node.append(...children);
    return node;
  };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // -- curves
  const STEPS = [...Array(8).keys()].flatMap((power) => [1, 2, 5].map((n) => n * 10 ** power));
  const plots = [];
  const number = (value, unit) => {
    if (value == null) return "–";
    if (unit === "share") return `${+(100 * value).toPrecision(3)}%`;
    const size = Math.abs(value);
    if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)}M`;
    if (size >= 1e4) return `${+(value / 1e3).toPrecision(3)}k`;
    return size && size < 1e-3 ? value.toExponential(1) : `${+value.toPrecision(3)}`;
  };

  const plot = (figure, chart) => {
    const lines = chart.lines;
    const muted = colour("--muted"), grid = { stroke: colour("--line"), width: 1 };
    const series = [{ label: "step" }], bands = [];
    const tables = lines.map((line) => [line.x, line.low, line.high, line.y]);
    for (const line of lines) {
      const stroke = colour(`--s${line.line % 6}`), first = series.length;
      // the recorded values of a step are one line, an interval is an area without edges
      const width = line.low.some((value, i) => value !== line.high[i]) ? 0 : 1;
      const edge = { class: "band", stroke: `${stroke}77`, width, points: { show: false } };
      bands.push({ series: [first + 1, first], fill: `${stroke}22` });
      const dash = line.line >= 6 ? [6, 4] : undefined;
      const label = data.lines[line.line] || "value";
      const value = (_, v) => number(v, chart.unit);
      series.push(edge, { ...edge }, { label, stroke, width: 2, dash, value });
    }
    const joined = tables.length > 1 ? uPlot.join(tables) : tables[0];
    const axis = { stroke: muted, grid, ticks: grid, font: "12px system-ui, sans-serif" };
    const options = {
      width: figure.clientWidth, height: 200, series, bands,
      hooks: { setCursor: [(u) => u.cursor.idx == null && u.setLegend({ idx: u.data[0].length - 1 })] },
      cursor: { sync: { key: "step" }, drag: { x: true, y: false } },
      scales: { x: { time: false } },
      axes: [{ ...axis, size: 32, incrs: STEPS }, { ...axis, size: 56, values: (_, v) => v.map((x) => number(x, chart.unit)) }],
    };
    const result = new uPlot(options, joined, figure);
    result.setLegend({ idx: joined[0].length - 1 });
    figure.onkeydown = (event) => keys(event, result);
    plots.push([figure, result]);
  };

  const keys = (event, plot) => {
    const x = plot.data[0], { min, max } = plot.scales.x;
    const last = x.length - 1, at = plot.cursor.idx ?? (event.key === "ArrowLeft" ? last + 1 : -1);
    const go = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
    const zoom = { "+": 0.25, "-": -0.5, 0: Infinity, Escape: Infinity }[event.key];
    if (go !== undefined) {
      const left = plot.valToPos(x[Math.max(0, Math.min(last, go))], "x");
      plot.setCursor({ left, top: plot.over.clientHeight / 2 });
    } else if (zoom !== undefined) {
      const by = zoom * (max - min);
      const ends = { min: Math.max(x[0], min + by), max: Math.min(x[last], max - by) };
      plot.setScale("x", zoom === Infinity ? { min: x[0], max: x[last] } : ends);
    } else return;
    event.preventDefault();
  };

  const drawCharts = () => {
    for (const [, plot] of plots.splice(0)) plot.destroy();
    byId("charts").childNodes.forEach((figure, i) => plot(figure, data.charts[i]));
  };

  const setUpCharts = () => {
    data.charts = data.charts.filter((chart) => chart.lines.length);
    if (!data.charts.length) return;
    byId("curves").hidden = false;
    for (const chart of data.charts) {
      const ends = chart.lines.map((line) => {
        const values = line.y.filter((value) => value != null);
        return `${data.lines[line.line] || ""} from ${number(values[0], chart.unit)} to ${number(values.at(-1), chart.unit)}`;
      });
      const caption = make("figcaption", {}, make("span", { textContent: chart.label }),
        make("code", { textContent: chart.key === chart.label ? "" : chart.key }));
      const figure = make("figure", { tabIndex: 0 }, caption);
      figure.setAttribute("aria-label", `${chart.label}: ${ends.join("; ")}`);
      byId("charts").append(figure);
    }
    drawCharts();
    new ResizeObserver(() => {
      for (const [figure, plot] of plots) plot.setSize({ width: figure.clientWidth, height: 200 });
    }).observe(byId("charts"));
  };

  // -- answers
  const view = { list: [], group: null, detail: null, answer: 0, token: 0 };
  const unpack = async (group) => {
    if (!group.detail) {
      const bytes = Uint8Array.from(atob(group.data), (c) => c.charCodeAt(0));
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
      group.detail = await new Response(stream).json();
      group.data = "";
    }
    return group.detail;
  };

  const setOf = (group) => `${group.run} ${group.origin} ${group.origin === "train" ? group.step : group.index}`;
  const setName = (group) => {
    const run = data.runs.length > 1 ? `${data.runs[group.run]}: ` : "";
    if (group.origin === "train") return `${run}step ${group.step}${group.note && `, ${group.note}`}`;
    return `${run}${group.origin} prompt ${group.index}, each visit`;
  };

  const listGroups = (entries) => { // groups, each with the index of the answer to open
    view.list = entries.map(([group]) => group);
    byId("groups").replaceChildren(...entries.map(([group, answer]) => {
      const first = group.origin === "train" && !byId("search").value ? `${group.index}` : `${group.step}`;
      const mean = `${group.same ? "= " : ""}${group.mean}`;
      const parts = [first, group.prompt || "–", mean].map((text) => make("span", { textContent: text }));
      const button = make("button", { type: "button", onclick: () => open(group, answer) }, ...parts);
      button.title = `step ${group.step}, prompt ${group.index}, mean reward ${group.mean}`;
      return make("li", {}, button);
    }));
  };

  const open = async (group, answer = 0) => {
    view.group = group;
    const detail = await unpack(group);
    if (view.group !== group) return;
    view.list.forEach((item, i) =>
      byId("groups").children[i].firstChild.setAttribute("aria-current", item === group));
    const modes = Object.keys(data.heat).filter((mode) => detail.answers.some((a) => mode in a.heat));
    const mode = byId("heat").value;
    byId("heat").replaceChildren(...modes.map((m) => make("option", { value: m, textContent: data.heat[m] })));
    byId("heat").disabled = !modes.length;
    if (modes.includes(mode)) byId("heat").value = mode;
    Object.assign(view, { detail, answer, token: 0 });
    paint();
  };

  const paint = (focus = "") => {
    const { detail, group } = view;
    if (!detail) return;
    const answer = detail.answers[view.answer];
    const tabs = make("div", { className: "tabs" });
    tabs.setAttribute("role", "tablist");
    tabs.setAttribute("aria-label", "answers");
    detail.answers.forEach((item, i) => {
      const name = `${item.name} ${item.advantage && `${item.advantage} · `}reward ${item.reward}`;
      const tab = make("button", { type: "button", textContent: name, className: level(item.push) });
      tab.setAttribute("role", "tab");
      tab.setAttribute("aria-selected", i === view.answer);
      tab.tabIndex = i === view.answer ? 0 : -1;
      tab.onclick = () => choose(i, "[aria-selected=true]");
      tabs.append(tab);
    });
    tabs.onkeydown = (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (by) choose(view.answer + by, "[aria-selected=true]");
    };
    const where = `step ${group.step}, prompt ${group.index}${detail.target && `, target ${detail.target}`}: ${detail.balance}`;
    const prompt = make("div", { className: "prompt", tabIndex: 0, textContent: detail.prompt });
    byId("group").replaceChildren(
      make("p", { className: "muted", textContent: where }),
      ...(detail.prompt ? [prompt] : []), tabs,
      ...(detail.missing ? [make("p", { className: "muted", textContent: detail.missing })] : []),
      ...(answer ? [tokensOf(answer), factsOf(), scoresOf(answer)] : ["No answers were recorded."]));
    if (answer) pick(answer.thinking && !view.token ? answer.thinking : view.token);
    if (focus) byId("group").querySelector(focus).focus();
  };

  const level = (value) => (value ? `${value > 0 ? "u" : "d"}${Math.abs(value)}` : "");
  const choose = (index, focus) => {
    const count = view.detail.answers.length;
    view.answer = (index + count) % count;
    view.token = 0;
    paint(focus);
  };

  const tokensOf = (answer) => {
    const heat = answer.heat[byId("heat").value] || [];
    const replies = new Set(answer.replies), clipped = new Set(answer.clipped);
    const node = make("div", { className: "tokens", tabIndex: 0 });
    node.setAttribute("role", "group");
    node.setAttribute("aria-label", `answer ${answer.name} by token: arrows go through it, up and down change the answer`);
    answer.texts.forEach((text, i) => {
      if (i in answer.turns) node.append(make("b", { className: "turn", textContent: answer.turns[i] }));
      const names = [level(heat[i]), replies.has(i) && "reply", clipped.has(i) && "clipped"];
      node.append(make("span", { textContent: text, className: names.filter(Boolean).join(" ") }));
    });
    node.onclick = (event) => {
      const index = spans(node).indexOf(event.target);
      if (index >= 0) pick(index);
    };
    node.onkeydown = (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
      const other = { ArrowUp: -1, ArrowDown: 1 }[event.key];
      if (by) pick(view.token + by);
      else if (other) choose(view.answer + other, ".tokens");
      else return;
      event.preventDefault();
    };
    return node;
  };

  const spans = (node) => [...node.querySelectorAll("span")];
  const factsOf = () => {
    const node = make("dl", { id: "facts" });
    node.setAttribute("aria-live", "polite");
    return node;
  };

  const pick = (index) => {
    const node = byId("group").querySelector(".tokens"), all = spans(node);
    const answer = view.detail.answers[view.answer];
    node.querySelector(".at")?.classList.remove("at");
    view.token = Math.max(0, Math.min(all.length - 1, index));
    if (!Object.keys(answer.facts).length) return byId("facts").replaceChildren();
    const span = all[view.token];
    span.classList.add("at");
    if (span.offsetTop < node.scrollTop + node.offsetTop || span.offsetTop > node.scrollTop + node.offsetTop + node.clientHeight - 30)
      node.scrollTop = span.offsetTop - node.offsetTop - node.clientHeight / 2;
    const facts = [["token", `${view.token + 1} of ${all.length}  “${answer.texts[view.token]}”`]];
    for (const [label, texts] of Object.entries(answer.facts))
      if (texts[view.token]) facts.push([label, texts[view.token]]);
    byId("facts").replaceChildren(...facts.flatMap(([label, text]) =>
      [make("dt", { textContent: label }), make("dd", { textContent: text })]));
  };

  const scoresOf = (answer) => {
    const rewards = answer.rewards.map(([name, value, weight, reason]) =>
      make("li", {}, `${name}  `, make("b", { textContent: value }), ` ${weight}`,
        make("span", { className: "reason", textContent: reason })));
    const marks = answer.verdicts.map((text) => make("li", { textContent: text }));
    return make("div", { className: "scores" }, make("ul", {}, ...rewards), make("ul", {}, ...marks));
  };

  const search = async () => {
    const text = byId("search").value.toLowerCase();
    if (!text) {
      byId("hits").textContent = "";
      return showSet();
    }
    const hits = [];
    for (const group of data.groups) {
      const detail = await unpack(group);
      const answer = detail.answers.findIndex((a) => a.texts.join("").toLowerCase().includes(text));
      if (answer >= 0 || detail.prompt.toLowerCase().includes(text)) hits.push([group, Math.max(0, answer)]);
    }
    if (text !== byId("search").value.toLowerCase()) return;
    byId("hits").textContent = `${hits.length} of ${data.groups.length} prompts`;
    listGroups(hits);
    if (hits.length) open(...hits[0]);
  };

  const showSet = () => {
    const groups = data.groups.filter((group) => setOf(group) === byId("sets").value);
    const order = (group) => (group.origin === "train" ? group.index : group.step);
    listGroups(groups.sort((a, b) => order(a) - order(b)).map((group) => [group, 0]));
    open(groups.find((group) => !group.same) || groups[0]);
  };

  const setUpAnswers = () => {
    if (!data.groups.length) return;
    byId("answers").hidden = false;
    const sets = new Map(data.groups.map((group) => [setOf(group), group]));
    const order = (group) => [group.run, group.origin === "train" ? 0 : 1, group.origin === "train" ? group.step : group.index];
    const sorted = [...sets].sort(([, a], [, b]) => {
      const [x, y] = [order(a), order(b)];
      return x[0] - y[0] || x[1] - y[1] || x[2] - y[2];
    });
    byId("sets").append(...sorted.map(([value, group]) => make("option", { value, textContent: setName(group) })));
    byId("sets").onchange = () => { byId("search").value = ""; byId("hits").textContent = ""; showSet(); };
    byId("heat").onchange = () => paint();
    let timer;
    byId("search").oninput = () => { clearTimeout(timer); timer = setTimeout(search, 200); };
    const last = sorted.filter(([, group]) => group.run === 0 && group.origin === "train").at(-1);
    if (last) byId("sets").value = last[0];
    showSet();
  };

  byId("theme").onclick = () => {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const root = document.documentElement;
    root.dataset.theme = (root.dataset.theme || (dark ? "dark" : "light")) === "dark" ? "light" : "dark";
    drawCharts();
  };
  matchMedia("(prefers-color-scheme: dark)").onchange = drawCharts;
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((item) => { item.open = true; }));
  setUpCharts();
  setUpAnswers();
})();
