"use strict";
// The views: functions from the words of an address to elements.

const rowLink = (at) => model.rows[at].kernel === null ? `#/dataflow/${at}` : `#/kernels/${model.rows[at].kernel}`;
const rowText = (row) => row.nodes.map((node) => node.name || node.op).join(", ");
const lead = (...words) => h("p", { class: "lead" }, words);
const note = (...words) => h("p", { class: "quiet" }, words);
const missing = (what) => [
  h("h1", {}, "Nothing here"),
  h("p", {}, `There is no ${what} on this page. `, link("#/overview", "To the overview")),
];

function legend(kinds) {
  return h("div", { class: "legend" }, kinds.map((kind) => h("span", { "data-kind": kind }, h("i"), KINDS[kind][0])));
}

// A row of a table that leads somewhere, by click or Enter.
function leading(href, kind, ...cells) {
  return h("tr", { tabindex: "0", "data-href": href, "data-kind": kind }, cells);
}
const named = (href, name) => cell([h("i", { class: "dot" }), link(href, name)], "name");

// ------------------------------------------------------------------------------------------------------------ overview

function overview() {
  const { profile, memory } = model;
  const launches = model.rows.filter((row) => row.kind === "kernel").length;
  const host = model.rows.filter((row) => row.kind === "host").length;
  const rows = model.rows.map((row, at) => [row, at]).filter(([row]) => row.kind !== "view");
  const slowest = [...rows].sort((a, b) => (b[0].seconds || 0) - (a[0].seconds || 0)).slice(0, profile ? 14 : 60);
  const ends = [...model.inputs.map((one) => ["input", ...one]), ...model.outputs.map((one) => ["output", ...one])];
  return [
    h("h1", {}, model.model),
    lead(`${plural(model.nodes.length, "node")} of the model became ${plural(launches, "kernel call")} and `,
      host ? `${plural(host, "node")} on the host` : "nothing on the host",
      `: ${plural(model.kernels.length, "different kernel")}, compiled for ${model.target}.`),
    h("div", { class: "tiles" },
      profile && speedTiles(profile),
      tile(bytes(memory.weights), "weights, as kernels want them"),
      tile(bytes(memory.arena), "arena for what is in between",
        memory.unshared ? `${percent(1 - memory.arena / memory.unshared)} saved by sharing` : null),
      tile(String(model.passes.runs.length), "passes changed the graph", link("#/passes", "see each"))),
    profile && [
      h("h2", {}, "One call, from left to right"),
      h("div", { class: "strip" }, rows.filter(([row]) => row.seconds).map(stripPart)),
      legend([...new Set(rows.map(([, at]) => kindOfRow[at]))]),
    ],
    h("h2", {}, profile ? "Where the time goes" : "What runs"),
    rowTable(slowest),
    rows.length > slowest.length && h("p", {}, link("#/dataflow", `All ${plural(rows.length, "call")} in order`)),
    h("h2", {}, "Inputs and outputs"),
    table(["", "name", "type"], ends.map(([kind, name, type]) =>
      h("tr", {}, cell(kind, "quiet"), cell(name), cell(h("code", {}, type))))),
  ];
}

function speedTiles(profile) {
  const operations = model.rows.reduce((sum, row) => sum + (row.operations || 0), 0);
  const rate = operations / profile.best / 1e9, peak = profile.gflops.float32;
  return [
    tile(time(profile.seconds), "a call, median",
      `${plural(profile.runs, "run")}, ${plural(profile.threads, "thread")}; best ${time(profile.best)}`),
    operations > 0 && tile(`${digits(rate)} GFLOP/s`, "all kernels together",
      peak ? ofPeak(rate / peak, "the measured float32 peak") : null),
  ];
}

function stripPart([row, at]) {
  return h("a", {
    href: rowLink(at), "data-kind": kindOfRow[at], "aria-label": `${row.label}, ${time(row.seconds)}`,
    style: { "flex-grow": row.seconds * 1e6, ...shade(at) },
    ...tipped(row.label, `${time(row.seconds)}, ${percent(share(row))} of the call`, rowText(row)),
  });
}

function rowTable(rows) {
  const largest = Math.max(...rows.map(([row]) => share(row))) || 1;
  const columns = ["kernel", "time>", "share>", "GFLOP/s>", "of peak>", "moved>", "GB/s>", "nodes of the model"];
  return table(columns, rows.map(([row, at]) => leading(rowLink(at), kindOfRow[at],
    named(rowLink(at), row.kernel === null ? row.label : `${row.kernel} ${row.label}`),
    cell(time(row.seconds), "right"),
    cell([percent(row.seconds && share(row)), bar(share(row) / largest, kindOfRow[at])], "right"),
    cell(row.operations ? digits(row.gflops) : "–", "right"),
    cell(percent(row.operations ? row.peak : null), "right"),
    cell(row.bytes ? bytes(row.bytes) : "–", "right"),
    cell(row.bytes ? digits(row.gigabytes) : "–", "right"),
    cell(h("div", { class: "cut", ...tipped(rowText(row)) }, rowText(row)), "quiet"))));
}

// ------------------------------------------------------------------------------------------------------------ dataflow

// The rows in order, with a lane for each value that is alive, as histories of branches are drawn.
function lanes(rows) {
  const last = new Map(), lane = new Map(), maker = new Map(), busy = [], dots = [];
  rows.forEach((row, at) => row.reads.forEach((name) => last.set(name, at)));
  function take(name, at, wanted) {
    let free = wanted !== undefined && !busy[wanted] ? wanted : busy.findIndex((taken) => !taken);
    if (free < 0) free = busy.length;
    busy[free] = last.has(name);
    lane.set(name, free);
    maker.set(name, at);
    return free;
  }
  for (const [name] of model.inputs) take(name, -1);
  rows.forEach((row, at) => {
    const ending = row.reads.filter((name) => lane.has(name) && last.get(name) === at).map((name) => lane.get(name));
    for (const free of ending) busy[free] = false;
    const wanted = ending.length ? Math.min(...ending) : undefined;
    const places = row.makes.map(([name]) => take(name, at, wanted));
    dots.push(places.length ? places[0] : wanted || 0);
  });
  return { lane, maker, dots, width: Math.max(1, busy.length) };
}

const ROW = 34, LANE = 14; // pixels
const laneX = (lane) => 12 + LANE * lane, rowY = (at) => ROW * at + ROW / 2;

// From the dot of the row that makes a value into its lane, down, and over to the dot of a row that reads it.
function edge(name, at, { lane, maker, dots }) {
  const from = maker.get(name), own = laneX(lane.get(name)), to = laneX(dots[at]), end = rowY(at);
  const start = from < 0 ? 0 : rowY(from), out = from < 0 ? own : laneX(dots[from]);
  const leave = out === own ? `M${own} ${start}`
    : `M${out} ${start} C${out} ${start + ROW / 2} ${own} ${start + ROW / 4} ${own} ${start + ROW * 0.8}`;
  const arrive = to === own ? `V${end}`
    : `V${end - ROW * 0.8} C${own} ${end - ROW / 4} ${to} ${end - ROW / 2} ${to} ${end}`;
  return svg("path", { d: `${leave} ${arrive}`, "data-from": from, "data-to": at, ...tipped(name) });
}

function dataflow(chosen) {
  const drawn = lanes(model.rows);
  const edges = model.rows.flatMap((row, at) =>
    row.reads.filter((name) => drawn.lane.has(name)).map((name) => edge(name, at, drawn)));
  const dots = model.rows.map((row, at) => svg("circle",
    { cx: laneX(drawn.dots[at]), cy: rowY(at), r: row.kind === "view" ? 3.5 : 6, "data-kind": kindOfRow[at] }));
  const size = { width: laneX(drawn.width) + 6, height: ROW * model.rows.length };
  const light = (at) => edges.forEach((one) =>
    one.classList.toggle("on", one.dataset.from === String(at) || one.dataset.to === String(at)));
  if (chosen !== undefined) queueMicrotask(() => byId(`row-${chosen}`)?.focus());
  return [
    h("h1", {}, "Dataflow"),
    lead("The graph after fusion, in the order in which it runs. Each row is one kernel call with the operators that ",
      "were fused into it; a line is a value, from the row that makes it to those that read it."),
    legend([...new Set(kindOfRow)]),
    h("h2"),
    h("div", { class: "flow" }, svg("svg", { ...size, "aria-hidden": "true" }, edges, dots),
      h("ol", { "data-list": "" }, model.rows.map((row, at) =>
        h("li", { onmouseenter: () => light(at), onfocusin: () => light(at) }, flowRow(row, at))))),
  ];
}

function flowRow(row, at) {
  const nodes = row.nodes.map((node) => `${node.op} ${node.name}`);
  return h("a", { href: rowLink(at), id: `row-${at}`, ...tipped(...nodes, row.reason && `on the host: ${row.reason}`) },
    h("span", { class: "quiet" }, row.kernel === null ? row.kind : `k${row.kernel}`),
    h("b", {}, row.label),
    h("span", { class: "quiet" }, row.reason ? `host: ${row.reason}` : row.nodes.map((node) => node.op).join(" → ")),
    h("code", { class: "quiet" }, row.makes.map(([, type]) => type).join(", ")),
    h("span", { class: "right" }, row.seconds ? time(row.seconds) : ""));
}

// -------------------------------------------------------------------------------------------------------------- passes

const signed = (count) => count === 0 ? "·" : `${count > 0 ? "+" : "−"}${Math.abs(count)}`;

// An entry of a list beside what is chosen in it.
function entry(href, isChosen, number, name, more, tip) {
  return h("li", {}, h("a", { href, "aria-current": isChosen && "true", ...(tip ? tipped(tip) : {}) },
    h("span", {}, number), h("span", { class: "what" }, name), h("span", {}, more)));
}

function passes(number) {
  const { lines, graphs, runs } = model.passes;
  if (!runs.length) return [h("h1", {}, "Passes over the graph"), h("p", {}, "No pass changed this graph.")];
  const at = Math.min(Number(number) || 0, runs.length - 1), run = runs[at];
  const text = (graph) => graphs[graph].map((line) => lines[line]);
  return [
    h("h1", {}, "Passes over the graph"),
    lead(`Those that changed something, in order; ${model.nodes.length} nodes came in, `,
      `${runs.at(-1).nodes[1]} were left for fusion.`),
    h("h2"),
    h("div", { class: "pair" },
      h("ol", { class: "list", "data-list": "" },
        runs.map((one, i) =>
          entry(`#/passes/${i}`, i === at, String(i + 1), one.name, signed(one.nodes[1] - one.nodes[0]))),
        entry("#/dataflow", false, "", "fuse, and layouts", plural(model.rows.length, "row"))),
      h("div", {},
        h("h3", {}, run.name),
        h("p", {}, run.reason),
        note(`${plural(run.nodes[0], "node")} before, ${run.nodes[1]} after`),
        run.rewrites.map(rewriting),
        diff(text(run.from), text(run.to), "graph", 2))),
  ];
}

function rewriting({ rule, reason, nodes }) {
  return h("div", { class: "why" },
    h("p", {}, h("b", {}, rule), nodes.length > 1 ? ` × ${nodes.length} ` : " ",
      h("span", { class: "quiet" }, reason)),
    h("p", {}, nodes.slice(0, 12).map(([op, name]) => h("span", { class: "chip" }, h("b", {}, op), ` ${name}`)),
      nodes.length > 12 && h("span", { class: "quiet" }, `and ${nodes.length - 12} more`)));
}

// ------------------------------------------------------------------------------------------------------------- kernels

const secondsOf = (kernel) => kernel.rows.reduce((sum, at) => sum + (model.rows[at].seconds || 0), 0);

function kernelList() {
  const sorted = [...model.kernels].sort((a, b) => secondsOf(b) - secondsOf(a));
  const whole = totalSeconds() || 1, longest = secondsOf(sorted[0]) || 1;
  const columns = ["kernel", "calls>", "all calls>", "share>", "of peak>", "steps>", "schedule by", "first node"];
  return [
    h("h1", {}, "Kernels"),
    lead("Each piece of machine code once, however often it is called; the dearest first."),
    h("h2"),
    table(columns, sorted.map((kernel) => {
      const href = `#/kernels/${kernel.number}`, kind = kindOfRow[kernel.rows[0]], row = model.rows[kernel.rows[0]];
      const seconds = secondsOf(kernel);
      return leading(href, kind,
        named(href, `${kernel.number} ${kernel.label}`),
        cell(String(kernel.rows.length), "right"),
        cell(seconds ? time(seconds) : "–", "right"),
        cell([seconds ? percent(seconds / whole) : "–", bar(seconds / longest, kind)], "right"),
        cell(percent(row.operations ? row.peak : null), "right"),
        cell(String(kernel.steps), "right"),
        cell([kernel.tuned ? "tuner" : "planner", kernel.trials > 0 && link(`${href}/tuning`,
          `, ${plural(kernel.trials, "trial")}, best ${digits(kernel.gain)}×`)], "quiet"),
        cell(h("div", { class: "cut" }, rowText(row)), "quiet"));
    })),
  ];
}

async function kernelView(number, tab = "expression", detail) {
  const index = model.kernels[Number(number)];
  if (!index) return missing(`kernel ${number}`);
  const kernel = await unpack(index.number + 1), base = `#/kernels/${index.number}`;
  const tabs = {
    expression: ["Expression", () => expression(kernel, index)],
    schedule: [`Schedule · ${index.steps} steps`, () => schedule(kernel.steps, base, detail)],
    plan: ["Plan and rivals", () => plan(kernel.tried)],
  };
  kernel.code.forEach((one, at) => { tabs[`code${at}`] = [one.name, () => code(one.text, one.language)]; });
  if (kernel.trials.length) tabs.tuning = ["Tuning", () => tuning(kernel.trials)];
  const neighbour = (by, name, words) => model.kernels[index.number + by]
    && h("a", { href: `#/kernels/${index.number + by}/${tab}`, class: name }, words);
  return [
    h("div", { class: "crumb" }, link("#/kernels", "Kernels"),
      h("span", {}, neighbour(-1, "previous", "← previous"), neighbour(1, "next", "next →"))),
    h("h1", {}, h("i", { class: "dot", "data-kind": kindOfRow[index.rows[0]] }), `${index.number} ${index.label}`),
    h("p", { class: "quiet mono" }, index.symbol),
    kernelTiles(index, model.rows[index.rows[0]]),
    h("div", { class: "tabs", role: "navigation", "aria-label": "Stages" }, Object.entries(tabs).map(([key, [name]]) =>
      h("a", { href: `${base}/${key}`, "aria-current": key === tab && "page" }, name))),
    tabs[tab] ? tabs[tab][1]() : missing(tab),
  ];
}

function kernelTiles(index, row) {
  const seconds = secondsOf(index), calls = index.rows.length;
  return h("div", { class: "tiles" },
    row.seconds && tile(time(row.seconds), "a call, median",
      `best ${time(row.best)}${calls > 1 ? `; ${calls} calls take ${time(seconds)}` : ""}`),
    row.seconds && tile(percent(seconds / totalSeconds()), "of the model's time"),
    row.operations > 0 && tile(`${digits(row.gflops)} GFLOP/s`,
      `${scaled(row.operations, ["", "K", "M", "G"], 1000)}FLOP, ${row.dtype}`, ofPeak(row.peak, "the measured peak")),
    row.bytes > 0 && tile(`${digits(row.gigabytes)} GB/s`, `${bytes(row.bytes)} read and written`,
      ofPeak(row.copy, "a large copy's rate")),
    tile(String(index.steps), "schedule steps", index.tuned ? "from the tuner's records" : "chosen by the planner"));
}

const MOST_CALLS = 6; // whose nodes are listed

function expression(kernel, index) {
  const calls = index.rows.length;
  const nodes = index.rows.slice(0, MOST_CALLS).flatMap((at) => model.rows[at].nodes);
  return [
    h("h3", {}, "What is computed, before anybody says how"),
    h("p"),
    code(kernel.expression, "python"),
    h("h2", {}, `For these nodes of the model${calls > 1 ? `, in ${calls} calls` : ""}`),
    table(["operator", "node of the model", "makes", "from"], nodes.map((node) => {
      const at = model.nodes.findIndex((one) => one.name && one.name === node.name);
      return h("tr", {},
        cell(h("b", {}, node.op)),
        cell(at < 0 ? node.name || "–" : link(`#/model/${at}`, node.name)),
        cell(node.types.map((type) => h("div", { class: "cut" }, h("code", {}, type)))),
        cell(origin(node.origin, model.nodes[at]?.source)));
    })),
    calls > MOST_CALLS && note(`and ${calls - MOST_CALLS} more calls with other nodes`),
  ];
}

function origin(place, line) {
  return [h("span", { class: "quiet" }, place || "–"), line && h("div", {}, h("code", {}, line))];
}

function schedule({ lines, first, steps, problem }, base, detail) {
  const text = (program) => program.map((line) => lines[line]);
  const loops = (program) => code(text(program).join("\n"), "loops");
  if (!steps.length) return [h("p", {}, "The loops run as the expression says."), loops(first)];
  const at = Math.max(0, Math.min(steps.length, detail === undefined ? 1 : Number(detail) || 0));
  let before = first, after = first;
  for (const { delta: [top, end, middle] } of steps.slice(0, at)) {
    before = after;
    after = [...before.slice(0, top), ...middle, ...before.slice(before.length - end)];
  }
  const item = (i, name, call) => entry(`${base}/schedule/${i}`, i === at, String(i),
    [name, h("small", {}, ` ${call.slice(call.indexOf("(") + 1, -1)}`)], "", call);
  const shown = at === 0
    ? [h("p", {}, "The loops that the expression means, in the layouts of the values around it."),
      loops(first)]
    : [h("p", {}, h("code", {}, steps[at - 1].python)),
      note(`Step ${at} of ${steps.length}; `, h("kbd", {}, "←"), " ", h("kbd", {}, "→"), " go through them."),
      before.join() === after.join()
        ? [note("The text of the loops stays as it is."), loops(after)]
        : diff(text(before), text(after), "loops", 6)];
  return h("div", { class: "pair" },
    h("ol", { class: "list", "data-list": "" }, item(0, "before any step", "(what the expression means)"),
      steps.map((step, i) => item(i + 1, step.name, step.python))),
    h("div", {}, shown, problem && note(problem)));
}

// ---------------------------------------------------------------------------------------------------- plan and tuning

function point(numbers) {
  return Object.entries(numbers).map(([knob, number]) =>
    h("span", { class: "chip" }, knob, " ", h("b", {}, String(number))));
}

function plan(tried) {
  const refused = tried.filter((one) => one.refused), plain = tried.filter((one) => !one.refused && !one.cost);
  return [
    note("Families of schedules offer points; the planner takes the legal one that the facts about the machine say is ",
      "fastest. No trial was run."),
    !tried.length && h("p", {}, "Nothing had to be chosen: the steps are a record's, a user's, or the only way."),
    tried.filter((one) => !one.refused && one.cost).map(rivals),
    refused.length > 0 && [
      h("h2", {}, "Refused"),
      table(["family", "point", "why"], refused.map((one) =>
        h("tr", {}, cell(one.name), cell(point(one.point)), cell(one.refused)))),
    ],
    plain.length > 0 && [
      h("h2", {}, "Also applied"),
      h("p", {}, plain.map((one) => h("span", { class: "chip" }, one.name))),
    ],
  ];
}

function rivals(taken) {
  const all = [[taken.name, taken.point, taken.cost], ...taken.rivals];
  const most = Math.max(...all.map(([, , cost]) => cost || 0)) || 1;
  return [
    h("h3", {}, `${taken.name}: ${plural(taken.rivals.length, "rival")}`),
    table(["", "family", "estimated>", "", "point"], all.map(([name, numbers, cost], at) => h("tr", {},
      cell(at ? "" : h("span", { class: "chip on" }, "taken")),
      cell(name),
      cell([time(cost), at > 0 && ` (×${digits(cost / taken.cost)})`], "right"),
      cell(bar(cost / most)),
      cell(point(numbers))))),
  ];
}

function tuning(trials) {
  const wide = 900, high = 260, floor = high - 26, top = Math.max(1.05, ...trials.map(([gain]) => gain || 0));
  const x = (at) => 40 + (wide - 56) * (at + 1) / trials.length, y = (gain) => floor - (high - 44) * (gain || 0) / top;
  let best = 1, line = `M40 ${y(1)}`;
  trials.forEach(([gain], at) => {
    if (gain > best) line += ` H${x(at)} V${y(gain)}`;
    best = Math.max(best, gain);
  });
  const failed = trials.filter(([, status]) => status !== "ok").length;
  const label = "Gain of each trial, and the best so far";
  return [
    h("p", {}, `${plural(trials.length, "trial")}, ${failed} failed; `, best > 1
      ? `the best is ${digits(best)} times as fast as the planner's choice.`
      : "none is faster than the planner's choice."),
    h("figure", { class: "picture" }, svg("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": label },
      [0, 0.5, 1, 1.5, 2, 3, 5, 8].filter((gain) => gain <= top).map((gain) => [
        svg("line", { class: "axis", x1: 40, x2: wide, y1: y(gain), y2: y(gain) }),
        svg("text", { x: 4, y: y(gain) + 4 }, `${gain}×`),
      ]),
      trials.map(([gain, status, sketch, estimate], at) => svg("circle", {
        class: status === "ok" ? "trial" : "failed", cx: x(at), cy: status === "ok" ? y(gain) : floor, r: 2.6,
        ...tipped(`trial ${at + 1}: ${status === "ok" ? `${digits(gain)}×` : status}`, sketch,
          estimate && `estimated ${digits(estimate)}×`),
      })),
      svg("path", { class: "best", d: `${line} H${x(trials.length - 1)}` }),
      svg("text", { x: wide - 8, y: high - 6, "text-anchor": "end" }, `${trials.length} trials`))),
  ];
}

// -------------------------------------------------------------------------------------------------- memory and model

// Bytes in use in each row; a value that is written over another takes none of its own.
function alive(lives, rows) {
  return Array.from({ length: rows }, (_, at) => {
    const places = new Map();
    for (const life of lives.filter((one) => one.first <= at && at <= one.last)) {
      places.set(life.offset, Math.max(life.bytes, places.get(life.offset) || 0));
    }
    return [...places.values()].reduce((sum, count) => sum + count, 0);
  });
}

function memory() {
  const { lives, arena, unshared, in_place: inPlace, weights, note: remark } = model.memory;
  const largest = [...lives].sort((a, b) => b.bytes - a.bytes).slice(0, 12);
  const least = Math.max(0, ...alive(lives, model.rows.length));
  return [
    h("h1", {}, "Memory"),
    lead("Where each value between kernels lies in the arena (upwards), from the call that writes it to the last that ",
      "reads it (left to right). Values that are never needed at the same time share bytes."),
    h("div", { class: "tiles" },
      tile(bytes(arena), "arena"),
      tile(bytes(unshared), "without sharing", unshared ? `${percent(1 - arena / unshared)} saved` : null),
      tile(bytes(least), "alive at once, at most", "less is not possible in this order"),
      tile(String(inPlace), "values written over an input"),
      tile(bytes(weights), "weights")),
    h("h2"),
    remark && h("p", {}, remark),
    lives.length > 0 && h("figure", { class: "picture" }, arenaPicture(lives, arena)),
    largest.length > 0 && [
      h("h2", {}, "The largest"),
      table(["value", "size>", "at>", "from", "to"], largest.map((life) => leading(rowLink(life.first), null,
        cell(link(rowLink(life.first), life.name)),
        cell(bytes(life.bytes), "right"),
        cell(bytes(life.offset), "right"),
        cell(`${life.first} ${model.rows[life.first].label}`),
        cell(`${life.last} ${model.rows[life.last].label}`)))),
    ],
  ];
}

function arenaPicture(lives, arena) {
  const wide = 1100, high = 460, left = 64, bottom = 26, rows = Math.max(1, model.rows.length);
  const x = (at) => left + (wide - left - 8) * at / rows;
  const y = (offset) => high - bottom - (high - bottom - 12) * offset / Math.max(1, arena);
  const box = (life) => ({
    x: x(life.first), width: Math.max(1.5, x(life.last + 1) - x(life.first)),
    y: y(life.offset + life.bytes), height: Math.max(1.5, y(life.offset) - y(life.offset + life.bytes)),
  });
  // A value that is written over another's bytes while that is alive hides the rest of it.
  const over = (life) => lives.filter((one) => one.first > life.first && one.offset < life.offset + life.bytes
    && life.offset < one.offset + one.bytes);
  const seen = (life) => x(Math.min(life.last + 1, ...over(life).map((one) => one.first))) - x(life.first);
  return svg("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": "The arena over time" },
    [0, 0.25, 0.5, 0.75, 1].map((part) => [
      svg("line", { class: "axis", x1: left, x2: wide, y1: y(part * arena), y2: y(part * arena) }),
      svg("text", { x: left - 8, y: y(part * arena) + 4, "text-anchor": "end" }, bytes(part * arena)),
    ]),
    lives.map((life) => svg("rect", {
      class: "life", tabindex: "0", "data-kind": kindOfRow[life.first], "data-href": rowLink(life.first),
      "aria-label": life.name, style: shade(life.first), ...box(life),
      ...tipped(`${life.name}: ${bytes(life.bytes)} at ${bytes(life.offset)}`,
        `written by ${model.rows[life.first].label} (row ${life.first}), last read in row ${life.last}`),
    })),
    lives.filter((life) => seen(life) > 6.4 * life.name.length + 8 && box(life).height > 15).map((life) =>
      svg("text", { class: "on", x: box(life).x + 6, y: box(life).y + 14 }, life.name)),
    svg("text", { x: left, y: high - 6 }, "first call"),
    svg("text", { x: wide - 8, y: high - 6, "text-anchor": "end" }, `row ${rows - 1}`));
}

function modelView(chosen) {
  const rows = model.nodes.map((node, at) => h("tr", {
    tabindex: "0", id: `node-${at}`, "data-href": node.rows.length > 0 && rowLink(node.rows[0]),
    "aria-selected": String(String(at) === chosen),
    "data-text": [node.op, node.name, node.origin, ...node.outputs].join(" ").toLowerCase(),
  },
  cell(h("b", {}, node.op)),
  cell(h("div", { class: "cut", ...tipped(node.name) }, node.name)),
  cell(node.types.map((type) => h("div", { class: "cut" }, h("code", {}, type)))),
  cell([node.rows.slice(0, 4).map(rowChip), node.fate !== "computed" && h("span", { class: "quiet" }, node.fate)]),
  cell(origin(node.origin === `${model.model}.${node.name}` ? "" : node.origin, node.source), "loose")));
  function choose() {
    for (const row of rows) row.hidden = !row.dataset.text.includes(filter.value.toLowerCase());
  }
  const words = { placeholder: "Only those that contain …", "aria-label": "Filter the nodes" };
  const filter = h("input", { class: "filter", type: "search", ...words, oninput: choose });
  if (chosen !== undefined) queueMicrotask(() => {
    byId(`node-${chosen}`)?.scrollIntoView({ block: "center" });
    byId(`node-${chosen}`)?.focus();
  });
  return [
    h("h1", {}, "The model as it was read"),
    lead("Its own nodes, where each was written, and the kernel that computes it now."),
    filter,
    table(["operator", "name", "makes", "computed by", "from"], rows),
  ];
}

function rowChip(at) {
  const row = model.rows[at];
  return h("a", { href: rowLink(at), class: "chip" }, row.kernel === null ? row.kind : `k${row.kernel} ${row.label}`);
}
