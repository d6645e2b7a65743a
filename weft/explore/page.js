"use strict";
// The page of `weft explore`. Its data are pieces of deflated JSON in <script type="text/plain"> elements: data-0 is the
// model, data-1 … are its kernels, unpacked when they are shown. A view is a function from the words of the address to
// elements. Whatever comes from a model goes into the page as text (`h` never reads HTML).

// ------------------------------------------------------------------------------------------------------------ elements

function make(space, tag, given, children) {
  const element = space ? document.createElementNS(space, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(given || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined
    && child !== false));
  return element;
}
const h = (tag, given, ...children) => make(null, tag, given, children);
const svg = (tag, given, ...children) => make("http://www.w3.org/2000/svg", tag, given, children);
const byId = (id) => document.getElementById(id);

// ---------------------------------------------------------------------------------------------------------------- data

const unpacked = new Map();

async function unpack(number) {
  if (!unpacked.has(number)) {
    const packed = Uint8Array.from(atob(byId(`data-${number}`).textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    unpacked.set(number, new Response(stream).json());
  }
  return unpacked.get(number);
}

let model;            // data-0
let kindOfRow = [];   // by number of row
// Neighbours of one kind are told apart.
const shade = (at) => ({ "--shade": `${100 - 14 * ((model.rows[at].kernel ?? 0) % 4)}%` });

const KINDS = {
  product: ["matrix products", /gemm|matmul|linear|einsum/i],
  window: ["convolutions and pools", /conv|pool/i],
  attention: ["attention", /attention/i],
  recurrent: ["recurrences", /lstm|gru|rnn/i],
  reduction: ["reductions and norms", /softmax|norm|reduce|argm/i],
  plain: ["elementwise and moves", /./],
  view: ["reshapes, no code", null],
  host: ["on the host", null],
};

function kindOf(row) {
  if (row.kind !== "kernel") return row.kind;
  const found = ["attention", "recurrent", "window", "product", "reduction"];
  return found.find((kind) => row.nodes.some((node) => KINDS[kind][1].test(node.op))) || "plain";
}

// ------------------------------------------------------------------------------------------------------------- figures

const digits = (value) => Number(value.toPrecision(3)).toLocaleString("en", { maximumSignificantDigits: 3 });
function scaled(value, units, base) {
  if (value === null || value === undefined) return "–";
  let at = 0;
  while (at + 1 < units.length && Math.abs(value) >= base) { value /= base; at++; }
  return `${digits(value)} ${units[at]}`;
}
const time = (seconds) => seconds === null || seconds === undefined ? "–"
  : scaled(seconds * 1e9, ["ns", "µs", "ms", "s"], 1000);
const bytes = (count) => scaled(count, ["B", "KB", "MB", "GB"], 1024);
const percent = (share) => share === null || share === undefined ? "–" : `${digits(100 * share)} %`;
const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
const share = (row) => (row.seconds || 0) / (totalSeconds() || 1);
const totalSeconds = () => model.rows.reduce((sum, row) => sum + (row.seconds || 0), 0);

function tile(value, name, more) {
  const [figure, ...unit] = value.split(" ");
  return h("div", { class: "tile" }, h("b", {}, figure, unit.length > 0 && h("i", {}, ` ${unit.join(" ")}`)),
    h("span", {}, name), more && h("small", {}, more));
}
// A share of a peak above 1 needs a word.
const ABOVE = "Above 100 %: the algorithm needs fewer operations than are counted, "
  + "or the peak was measured while the machine was busy.";
const ofPeak = (part, of) => part ? h("span", part > 1 ? tipped(ABOVE) : {},
  `${percent(part)} of ${of}${part > 1 ? " *" : ""}`) : null;
function bar(part, kind) {
  const filled = `${Math.max(0, Math.min(1, part || 0)) * 100}%`;
  return h("span", { class: "bar", "data-kind": kind, "aria-hidden": "true" }, h("i", { style: { width: filled } }));
}
function table(columns, rows) {
  const head = columns.map((name) => h("th", { class: name.endsWith(">") && "right" }, name.replace(">", "")));
  return h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)));
}
const cell = (child, kind) => h("td", { class: kind }, child);
const tipped = (text) => ({ "data-tip": text });

// ---------------------------------------------------------------------------------------------------------------- code

const WORDS = {
  loops: "for in range if else block with where reads writes init let func parallel vectorized unrolled vthread and or "
    + "not min max",
  python: "def return lambda for in if else and or not import from class True False None",
  llvm: "define declare ret br label switch phi call tail musttail load store getelementptr inbounds select "
    + "icmp fcmp fadd fmul fsub add sub mul alloca bitcast ptrtoint inttoptr to target triple "
    + "attributes align noalias readonly fast nnan contract insertelement extractelement shufflevector unreachable "
    + "private internal constant global",
  graph: "graph const from",
    cuda: "extern __global__ __shared__ void if else for return const int float __restrict__ __launch_bounds__",
  opencl: "__kernel __global __local void if else for return const int float",
};
const patterns = new Map();

function pattern(language) {
  if (!patterns.has(language)) {
    const comment = { llvm: ";.*", asm: "(?:;|//|#\\s).*|^\\s+\\..*", cuda: "//.*", opencl: "//.*" }[language] || "#.*";
    const words = (WORDS[language] || "").split(" ").filter(Boolean).join("|");
    const keyword = language === "asm" ? "(?<=^\\s+)[a-z][\\w.]*" : words ? `\\b(?:${words})\\b` : "(?!)";
    const parts = [
      `(?<c>${comment})`, '(?<s>"(?:[^"\\\\]|\\\\.)*"|\'(?:[^\'\\\\]|\\\\.)*\')', `(?<k>${keyword})`,
      "(?<t>\\b(?:b?float|u?int|bool|double|half|i|v)\\d+(?:x\\d+)?\\b|<\\d+ x \\w+>|\\bptr\\b)",
      "(?<v>[%@][\\w.$-]+|^[\\w.$]+:)", "(?<n>(?<![\\w.])#?-?(?:0x[\\da-f]+|\\d[\\d_]*(?:\\.\\d+)?(?:e[+-]?\\d+)?)\\b)",
    ];
    patterns.set(language, new RegExp(parts.join("|"), "gm"));
  }
  return patterns.get(language);
}

function coloured(text, language) {
  const found = [];
  let end = 0;
  for (const match of text.matchAll(pattern(language))) {
    if (match.index > end) found.push(text.slice(end, match.index));
    const kind = Object.keys(match.groups).find((key) => match.groups[key] !== undefined);
    found.push(h("span", { class: kind }, match[0]));
    end = match.index + match[0].length;
  }
  found.push(text.slice(end));
  return found;
}

const CHUNK = 240; // lines that are coloured together, when they come into sight
const watcher = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    watcher.unobserve(target);
    target.replaceChildren(...coloured(target.textContent, target.dataset.language));
  }
}, { rootMargin: "800px" });

function code(text, language) {
  const lines = text.replace(/\s+$/, "").split("\n");
  const pre = h("pre", { tabindex: "0" });
  for (let at = 0; at < lines.length; at += CHUNK) {
    const part = h("div",
      { "data-language": language,
      style: { "contain-intrinsic-height": `auto ${20 * Math.min(CHUNK, lines.length - at)}px` } },
      lines.slice(at, at + CHUNK).join("\n"));
    pre.append(part);
    watcher.observe(part);
  }
  const copy = h("button", { type: "button", onclick: async () => {
    await navigator.clipboard.writeText(text);
    copy.textContent = "copied";
  } }, "copy");
  return h("div", { class: "code" }, pre, copy);
}

// What two lists of lines have in common, by the longest common subsequence of what is between their common ends.
function difference(before, after) {
  let top = 0, end = 0;
  while (top < before.length && top < after.length && before[top] === after[top]) top++;
  while (end < before.length - top && end < after.length - top && before.at(-1 - end) === after.at(-1 - end)) end++;
  const a = before.slice(top, before.length - end), b = after.slice(top, after.length - end);
  const found = before.slice(0, top).map((line) => [" ", line]);
  const width = b.length + 1;
  if (a.length * b.length <= 6e6) {
    const longest = new Uint16Array((a.length + 1) * width);
    for (let i = a.length - 1; i >= 0; i--) {
      for (let j = b.length - 1; j >= 0; j--) {
        longest[i * width + j] = a[i] === b[j] ? longest[(i + 1) * width + j + 1] + 1
          : Math.max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
      }
    }
    let i = 0, j = 0;
    while (i < a.length || j < b.length) {
      if (i < a.length && j < b.length && a[i] === b[j]) { found.push([" ", a[i++]]); j++; }
      else if (j >= b.length
        || (i < a.length && longest[(i + 1) * width + j] >= longest[i * width + j + 1])) found.push(["-", a[i++]]);
      else found.push(["+", b[j++]]);
    }
  } else found.push(...a.map((line) => ["-", line]), ...b.map((line) => ["+", line]));
  return [...found, ...before.slice(before.length - end).map((line) => [" ", line])];
}

function diff(before, after, language, context) {
  const lines = difference(before, after);
  const near = new Uint8Array(lines.length);
  lines.forEach(([sign], at) => {
    if (sign !== " ") near.fill(1, Math.max(0, at - context), at + context + 1);
  });
  const pre = h("pre", { class: "diff", tabindex: "0" });
  let hidden = 0;
  const flush = () => {
    if (hidden) pre.append(h("div", { class: "gap" }, `⋯ ${plural(hidden, "line")} as before`));
    hidden = 0;
  };
  lines.forEach(([sign, line], at) => {
    if (!near[at]) { hidden++; return; }
    flush();
    pre.append(h("div", { class: sign === "+" ? "plus" : sign === "-" ? "minus" : null }, coloured(line, language)));
  });
  flush();
  return pre;
}

// --------------------------------------------------------------------------------------------------------------- views

const rowLink = (at) => model.rows[at].kernel === null ? `#/dataflow/${at}` : `#/kernels/${model.rows[at].kernel}`;
const rowText = (row) => row.nodes.map((node) => node.name || node.op).join(", ");

function overview() {
  const profile = model.profile, memory = model.memory;
  const launches = model.rows.filter((row) => row.kind === "kernel");
  const host = model.rows.filter((row) => row.kind === "host").length;
  const kept = memory.unshared ? 1 - memory.arena / memory.unshared : 0;
  const rows = model.rows.map((row, at) => [row, at]).filter(([row]) => row.kind !== "view");
  const slowest = [...rows].sort((a, b) => (b[0].seconds || 0) - (a[0].seconds || 0)).slice(0, profile ? 14 : 60);
  const kinds = [...new Set(rows.map(([, at]) => kindOfRow[at]))];
  const operations = model.rows.reduce((sum, row) => sum + (row.operations || 0), 0);
  const peak = profile && profile.gflops.float32;
  return [
    h("h1", {}, model.model),
    h("p", { class: "lead" },
      `${plural(model.nodes.length, "node")} of the model became ${plural(launches.length, "kernel call")}`,
      host ? ` and ${plural(host, "node")} on the host` : " and nothing on the host",
      `: ${plural(model.kernels.length, "different kernel")}, compiled for ${model.target}.`),
    h("div", { class: "tiles" },
      profile && tile(time(profile.seconds), "a call, median",
        `${plural(profile.runs, "run")}, ${plural(profile.threads, "thread")}; best ${time(profile.best)}`),
      profile && operations > 0 && tile(`${digits(operations / profile.best / 1e9)} GFLOP/s`, "all kernels together",
        peak ? ofPeak(operations / profile.best / 1e9 / peak, "the measured float32 peak") : null),
      tile(bytes(memory.weights), "weights, as kernels want them"),
      tile(bytes(memory.arena), "arena for what is in between",
        memory.unshared ? `${percent(kept)} saved by sharing` : null),
      tile(String(model.passes.runs.length), "passes changed the graph", h("a", { href: "#/passes" }, "see each"))),
    profile && [
      h("h2", {}, "One call, from left to right"),
      h("div", { class: "strip" }, rows.filter(([row]) => row.seconds).map(([row, at]) => h("a", {
        href: rowLink(at), "data-kind": kindOfRow[at], "aria-label": `${row.label}, ${time(row.seconds)}`,
          style: { "flex-grow": row.seconds * 1e6, ...shade(at) },
        ...tipped(`${row.label}\n${time(row.seconds)}, ${percent(share(row))} of the call\n${rowText(row)}`) }))),
      h("div", { class: "legend" }, kinds.map((kind) => h("span", { "data-kind": kind }, h("i"), KINDS[kind][0])))],
    h("h2", {}, profile ? "Where the time goes" : "What runs"),
    rowTable(slowest),
    rows.length > slowest.length
      && h("p", {}, h("a", { href: "#/dataflow" }, `All ${plural(rows.length, "call")} in order`)),
    h("h2", {}, "Inputs and outputs"),
    table(["", "name", "type"], [...model.inputs.map((one) => ["input", ...one]),
      ...model.outputs.map((one) => ["output", ...one])]
      .map(([kind, name, type]) => h("tr", {}, cell(kind, "quiet"), cell(name), cell(h("code", {}, type))))),
  ];
}

function rowTable(rows) {
  const largest = Math.max(...rows.map(([row]) => share(row))) || 1;
  return table(["kernel", "time>", "share>", "GFLOP/s>", "of peak>", "moved>", "GB/s>", "nodes of the model"],
    rows.map(([row, at]) =>
    h("tr", { tabindex: "0", "data-href": rowLink(at), "data-kind": kindOfRow[at] },
      cell([h("i", { class: "dot" }),
        h("a", { href: rowLink(at) }, row.kernel === null ? row.label : `${row.kernel} ${row.label}`)]),
      cell(time(row.seconds), "right"),
        cell([percent(row.seconds && share(row)), bar(share(row) / largest, kindOfRow[at])], "right"),
      cell(row.operations ? digits(row.gflops) : "–", "right"),
        cell(percent(row.operations ? row.peak : null), "right"),
      cell(row.bytes ? bytes(row.bytes) : "–", "right"), cell(row.bytes ? digits(row.gigabytes) : "–", "right"),
      cell(h("div", { class: "cut", ...tipped(rowText(row)) }, rowText(row)), "quiet"))));
}

// The rows in order, with a lane for each value that is alive, as histories of branches are drawn.
function lanes(rows) {
  const last = new Map(), lane = new Map(), maker = new Map(), busy = [], dots = [];
  rows.forEach((row, at) => row.reads.forEach((name) => last.set(name, at)));
  const takeLane = (name, until, wanted) => {
    let at = wanted !== undefined && !busy[wanted] ? wanted : busy.findIndex((one) => !one);
    if (at < 0) at = busy.length;
    busy[at] = until > -1 ? { name, until } : null;
    lane.set(name, at);
    return at;
  };
  for (const [name] of model.inputs) { maker.set(name, -1); takeLane(name, last.get(name) ?? -1); }
  rows.forEach((row, at) => {
    const ending = row.reads.filter((name) => lane.has(name) && last.get(name) === at).map((name) => lane.get(name));
    ending.forEach((one) => { busy[one] = null; });
    const wanted = ending.length ? Math.min(...ending) : undefined;
    const places = row.makes.map(([name]) => { maker.set(name, at); return takeLane(name, last.get(name) ?? -1,
      wanted); });
    dots.push(places.length ? places[0] : wanted || 0);
  });
  return { lane, maker, dots, width: Math.max(1, busy.length) };
}

const ROW = 34, LANE = 14;

function dataflow(chosen) {
  const { lane, maker, dots, width } = lanes(model.rows);
  const x = (one) => 12 + LANE * one, y = (at) => ROW * at + ROW / 2;
  const edges = [];
  model.rows.forEach((row, at) => row.reads.forEach((name) => {
    if (!lane.has(name)) return;
    const from = maker.get(name), own = x(lane.get(name)), start = from < 0 ? 0 : y(from), to = x(dots[at]);
    const path = from >= 0 && x(dots[from]) !== own
      ? `M${x(dots[from])} ${start} C${x(dots[from])} ${start + ROW / 2} ${own} ${start + ROW / 4} `
        + `${own} ${start + ROW * 0.8}` : `M${own} ${start}`;
    const turn = to === own ? `V${y(at)}`
      : `V${y(at) - ROW * 0.8} C${own} ${y(at) - ROW / 4} ${to} ${y(at) - ROW / 2} ${to} ${y(at)}`;
    edges.push(svg("path", { d: `${path} ${turn}`, "data-from": from, "data-to": at, ...tipped(name) }));
  }));
  const picture = svg("svg", { width: x(width) + 6, height: ROW * model.rows.length, "aria-hidden": "true" }, edges,
    model.rows.map((row, at) => svg("circle", { cx: x(dots[at]), cy: y(at), r: row.kind === "view" ? 3.5 : 6,
      "data-kind": kindOfRow[at] })));
  const light = (at) => edges.forEach((edge) => edge.classList.toggle("on",
    edge.dataset.from === String(at) || edge.dataset.to === String(at)));
  const items = model.rows.map((row, at) => h("li", { onmouseenter: () => light(at), onfocusin: () => light(at) },
    h("a", { href: rowLink(at), id: `row-${at}`,
      ...tipped([...row.nodes.map((node) => `${node.op} ${node.name}`), row.reason && `on the host: ${row.reason}`]
        .filter(Boolean).join("\n")) },
      h("span", { class: "quiet" }, row.kernel === null ? row.kind : `k${row.kernel}`), h("b", {}, row.label),
      h("span", { class: "quiet" }, row.reason ? `host: ${row.reason}` : row.nodes.map((node) => node.op).join(" → ")),
      h("code", { class: "quiet" }, row.makes.map(([, type]) => type).join(", ")),
        h("span", { class: "right" }, row.seconds ? time(row.seconds) : ""))));
  if (chosen !== undefined) queueMicrotask(() => byId(`row-${chosen}`)?.focus());
  return [h("h1", {}, "Dataflow"),
    h("p", { class: "lead" },
      "The graph after fusion, in the order in which it runs. Each row is one kernel call with the operators that were ",
      "fused into it; a line is a value, from the row that makes it to those that read it."),
    h("div", { class: "legend" },
      [...new Set(kindOfRow)].map((kind) => h("span", { "data-kind": kind }, h("i"), KINDS[kind][0]))), h("h2"),
    h("div", { class: "flow" }, picture, h("ol", { "data-list": "" }, items))];
}

function passes(number) {
  const { lines, graphs, runs } = model.passes;
  if (!runs.length) return [h("h1", {}, "Passes"), h("p", {}, "No pass changed this graph.")];
  const at = Math.min(Number(number) || 0, runs.length - 1), run = runs[at];
  const text = (graph) => graphs[graph].map((line) => lines[line]);
  const list = h("ol", { class: "list", "data-list": "" },
    runs.map((one, i) => h("li", {}, h("a", { href: `#/passes/${i}`, "aria-current": i === at && "true" },
    h("span", {}, String(i + 1)), h("span", { class: "what" }, one.name),
      h("span", {}, one.nodes[1] === one.nodes[0] ? "·" : signed(one.nodes[1] - one.nodes[0]))))));
  return [h("h1", {}, "Passes over the graph"),
    h("p", { class: "lead" },
      `Those that changed something, in order; ${model.nodes.length} nodes came in, `,
      `${runs.at(-1).nodes[1]} were left for fusion.`),
    h("h2"),
    h("div", { class: "pair" }, list, h("div", {}, h("h3", {}, run.name), h("p", {}, run.reason),
      h("p", { class: "quiet" }, `${plural(run.nodes[0], "node")} before, ${run.nodes[1]} after`),
      run.rewrites.map((one) => h("div", { class: "why" },
        h("p", {}, h("b", {}, one.rule), ` ${one.nodes.length > 1 ? `× ${one.nodes.length} ` : ""}`,
        h("span", { class: "quiet" }, one.reason)),
        h("p", {}, one.nodes.slice(0, 12).map(([op, name]) => h("span", { class: "chip" }, h("b", {}, op), ` ${name}`)),
          one.nodes.length > 12 && h("span", { class: "quiet" }, `and ${one.nodes.length - 12} more`)))),
      diff(text(run.from), text(run.to), "graph", 2)))];
}
const signed = (count) => `${count > 0 ? "+" : "−"}${Math.abs(count)}`;

function kernelList() {
  const measured = model.kernels.map((kernel) => {
    const rows = kernel.rows.map((at) => model.rows[at]),
      sum = (key) => rows.reduce((total, row) => total + (row[key] || 0), 0);
    return { kernel, first: kernel.rows[0], calls: rows.length, seconds: sum("seconds"), row: rows[0] };
  }).sort((a, b) => b.seconds - a.seconds);
  const whole = totalSeconds() || 1;
  return [h("h1", {}, "Kernels"),
    h("p", { class: "lead" }, "Each piece of machine code once, however often it is called; the dearest first."),
    h("h2"),
    table(["kernel", "calls>", "all calls>", "share>", "of peak>", "steps>", "schedule by", "first node"],
      measured.map((one) =>
      h("tr", { tabindex: "0", "data-href": `#/kernels/${one.kernel.number}`, "data-kind": kindOfRow[one.first] },
        cell([h("i", { class: "dot" }), h("a", { href: `#/kernels/${one.kernel.number}` },
          `${one.kernel.number} ${one.kernel.label}`)]), cell(String(one.calls), "right"),
        cell(one.seconds ? time(one.seconds) : "–", "right"),
          cell([one.seconds ? percent(one.seconds / whole) : "–",
          bar(one.seconds / (measured[0].seconds || 1), kindOfRow[one.first])], "right"),
        cell(percent(one.row?.operations ? one.row.peak : null), "right"), cell(String(one.kernel.steps), "right"),
          cell([one.kernel.tuned ? "tuner" : "planner",
          one.kernel.trials > 0 && h("a", { href: `#/kernels/${one.kernel.number}/tuning` },
          ` ${plural(one.kernel.trials, "trial")}, best ${digits(one.kernel.gain)}×`)], "quiet"),
        cell(h("div", { class: "cut" }, one.row ? rowText(one.row) : ""), "quiet"))))];
}

async function kernelView(number, tab = "expression", detail) {
  const index = model.kernels[Number(number)];
  if (!index) return missing(`kernel ${number}`);
  const kernel = await unpack(index.number + 1), row = model.rows[index.rows[0]];
  const seconds = index.rows.reduce((sum, at) => sum + (model.rows[at].seconds || 0), 0);
  const tabs = { expression: "Expression", schedule: `Schedule · ${kernel.steps.steps.length} steps`,
    plan: "Plan and rivals" };
  kernel.code.forEach((one, at) => { tabs[`code${at}`] = one.name; });
  if (kernel.trials.length) tabs.tuning = "Tuning";
  const base = `#/kernels/${index.number}`;
  const content = {
    expression: () => [h("h3", {}, "What is computed, before anybody says how"), h("p"),
      code(kernel.expression, "python"),
      h("h2", {}, index.rows.length > 1 ? `For these nodes of the model, in ${index.rows.length} calls`
        : "For these nodes of the model"), origins(index.rows)],
    schedule: () => schedule(kernel.steps, base, detail), plan: () => plan(kernel.tried),
      tuning: () => tuning(kernel.trials),
  }[tab] || (() => { const one = kernel.code[Number(tab.slice(4))]; return one ? code(one.text, one.language)
    : missing(tab); });
  const neighbour = (by) => model.kernels[index.number + by]
    && h("a", { href: `${base.replace(/\d+$/, index.number + by)}/${tab}`, class: by < 0 ? "previous" : "next" },
    by < 0 ? "← previous" : "next →");
  return [h("div", { class: "crumb" }, h("a", { href: "#/kernels" }, "Kernels"),
    h("span", {}, neighbour(-1), neighbour(1))),
    h("h1", {}, h("i", { class: "dot", "data-kind": kindOfRow[index.rows[0]] }), `${index.number} ${index.label}`),
    h("p", { class: "quiet mono" }, index.symbol),
    h("div", { class: "tiles" },
      row.seconds && tile(time(row.seconds), "a call, median",
        `best ${time(row.best)}${index.rows.length > 1 ? `; ${index.rows.length} calls take ${time(seconds)}` : ""}`),
      row.seconds && tile(percent(seconds / totalSeconds()), "of the model's time"),
      row.operations > 0 && tile(`${digits(row.gflops)} GFLOP/s`,
        `${scaled(row.operations, ["", "K", "M", "G"], 1000)}FLOP, ${row.dtype}`,
        ofPeak(row.peak, "the measured peak")),
      row.bytes > 0 && tile(`${digits(row.gigabytes)} GB/s`, `${bytes(row.bytes)} read and written`,
        ofPeak(row.copy, "a large copy's rate")),
      tile(String(index.steps), "schedule steps", index.tuned ? "from the tuner's records" : "chosen by the planner")),
    h("div", { class: "tabs", role: "navigation", "aria-label": "Stages" },
      Object.entries(tabs).map(([key, name]) => h("a",
      { href: `${base}/${key}`, "aria-current": key === tab && "page" }, name))),
    content()];
}

function origins(rows) {
  const nodes = rows.slice(0, 6).flatMap((at) => model.rows[at].nodes.map((node) => [node, at]));
  return [table(["operator", "node of the model", "makes", "from"], nodes.map(([node]) => {
    const own = model.nodes.find((one) => one.name && one.name === node.name);
    return h("tr", {}, cell(h("b", {}, node.op)),
      cell(own ? h("a", { href: `#/model/${model.nodes.indexOf(own)}` }, node.name) : node.name || "–"),
      cell(h("code", {}, node.types.join(", "))),
        cell([h("span", { class: "quiet" }, node.origin || "–"),
        own?.source && h("div", {}, h("code", {}, own.source))]));
  })), rows.length > 6 && h("p", { class: "quiet" }, `and ${rows.length - 6} more calls with other nodes`)];
}

function schedule(data, base, detail) {
  const { lines, first, steps } = data;
  if (!steps.length) return [h("p", {}, "The loops run as the expression says: no step was needed."),
    code(first.map((line) => lines[line]).join("\n"), "loops")];
  const at = Math.max(0, Math.min(steps.length, detail === undefined ? 1 : Number(detail) || 0));
  let before = first, after = first;
  for (let i = 0; i < at; i++) {
    const [top, end, middle] = steps[i].delta;
    before = after;
    after = [...before.slice(0, top), ...middle, ...before.slice(before.length - end)];
  }
  const text = (program) => program.map((line) => lines[line]);
  const item = (i, name, more) => h("li", {},
    h("a", { href: `${base}/schedule/${i}`, "aria-current": i === at && "true", ...tipped(more) },
    h("span", {}, String(i)),
    h("span", { class: "what" }, name, h("small", {}, ` ${more.slice(more.indexOf("(") + 1, -1)}`)), h("span")));
  const list = h("ol", { class: "list", "data-list": "", "data-steps": "" },
    item(0, "before any step", "(what the expression means)"),
    steps.map((step, i) => item(i + 1, step.name, step.python)));
  return h("div", { class: "pair" }, list, h("div", {},
    at === 0 ? [h("p", {}, "The loops that the expression means, in the layouts of the values around it."),
      code(text(first).join("\n"), "loops")]
      : [h("p", {}, h("code", {}, steps[at - 1].python)), h("p", { class: "quiet" }, `Step ${at} of ${steps.length}; `,
        h("kbd", {}, "←"), " ", h("kbd", {}, "→"), " go through them."),
        before.join() === after.join() ? [h("p", { class: "quiet" }, "The text of the loops stays as it is."),
          code(text(after).join("\n"), "loops")] : diff(text(before), text(after), "loops", 6)],
    data.problem && h("p", { class: "quiet" }, data.problem)));
}

const point = (numbers) => Object.entries(numbers).map(([knob, number]) => h("span", { class: "chip" }, knob, " ",
  h("b", {}, String(number))));

function plan(tried) {
  const taken = tried.filter((one) => !one.refused && one.cost), refused = tried.filter((one) => one.refused);
  return [h("p", { class: "quiet" },
    "Families of schedules offer points; the planner takes the legal one that the facts about the machine say is ",
    "fastest. No trial was run."),
    !tried.length && h("p", {}, "Nothing had to be chosen: the steps are a record's, a user's, or the only way."),
    taken.map((one) => {
      const all = [[one.name, one.point, one.cost], ...one.rivals],
        most = Math.max(...all.map(([, , cost]) => cost || 0)) || 1;
      return [h("h3", {}, `${one.name}: ${plural(one.rivals.length, "rival")}`),
        table(["", "family", "estimated>", "", "point"], all.map(([name, numbers, cost], at) => h("tr", {},
        cell(at ? "" : h("span", { class: "chip on" }, "taken")), cell(name),
          cell([time(cost), at ? ` (×${digits(cost / one.cost)})` : ""], "right"), cell(bar(cost / most)),
          cell(point(numbers)))))];
    }),
    refused.length > 0
      && [h("h2", {}, "Refused"),
      table(["family", "point", "why"],
      refused.map((one) => h("tr", {}, cell(one.name), cell(point(one.point)), cell(one.refused))))],
    tried.some((one) => !one.refused && !one.cost)
      && [h("h2", {}, "Also applied"),
      h("p", {}, tried.filter((one) => !one.refused && !one.cost).map((one) => h("span", { class: "chip" },
      one.name)))]];
}

function tuning(trials) {
  const wide = 900, high = 260, top = Math.max(1.05, ...trials.map(([gain]) => gain || 0));
  const x = (at) => 40 + (wide - 56) * (at + 1) / Math.max(1, trials.length),
    y = (gain) => high - 26 - (high - 44) * (gain || 0) / top;
  let best = 1, line = `M40 ${y(1)}`;
  trials.forEach(([gain], at) => { if (gain > best) { line += ` H${x(at)} V${y(gain)}`; best = gain; } });
  const failed = trials.filter(([, status]) => status !== "ok").length;
  return [h("p", {},
    `${plural(trials.length, "trial")}, ${failed} failed; the best is ${digits(best)} times as fast as the planner's `,
    "choice."),
    h("figure", { class: "picture" },
      svg("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img",
      "aria-label": "Gain of each trial, and the best so far" },
      [0, 0.5, 1, 1.5, 2, 3, 5,
        8].filter((gain) => gain <= top).map((gain) => [svg("line",
        { class: "axis", x1: 40, x2: wide, y1: y(gain), y2: y(gain) }),
        svg("text", { x: 4, y: y(gain) + 4 }, `${gain}×`)]),
      trials.map(([gain, status, sketch, estimate], at) => svg("circle",
        { class: status === "ok" ? "trial" : "failed", cx: x(at), cy: status === "ok" ? y(gain) : high - 26, r: 2.6,
        ...tipped([`trial ${at + 1}: ${status === "ok" ? `${digits(gain)}×` : status}`, sketch,
          estimate && `estimated ${digits(estimate)}×`].filter(Boolean).join("\n")) })),
      svg("path", { class: "best", d: `${line} H${x(trials.length - 1)}` }),
        svg("text", { x: wide - 8, y: high - 6, "text-anchor": "end" }, `${trials.length} trials`)))];
}

function memory() {
  const { lives, arena, unshared, in_place: inPlace, weights, note } = model.memory;
  const wide = 1100, high = 460, left = 64, bottom = 26, steps = Math.max(1, model.rows.length);
  const x = (at) => left + (wide - left - 8) * at / steps,
    y = (offset) => high - bottom - (high - bottom - 12) * offset / Math.max(1, arena);
  const alive = Array(steps).fill(0);
  for (let at = 0; at < steps; at++) { // a value that is written over another takes no bytes of its own
    const places = new Map();
    for (const life of lives) if (life.first <= at && at <= life.last) places.set(life.offset,
      Math.max(life.bytes, places.get(life.offset) || 0));
    for (const count of places.values()) alive[at] += count;
  }
  const largest = [...lives].sort((a, b) => b.bytes - a.bytes).slice(0, 12);
  const marks = [0, 0.25, 0.5, 0.75, 1].map((part) => part * arena);
  return [h("h1", {}, "Memory"),
    h("p", { class: "lead" },
      "Where each value between kernels lies in the arena (upwards), from the call that writes it to the last that ",
      "reads it (left to right). Values that are never needed at the same time share bytes."),
    h("div", { class: "tiles" }, tile(bytes(arena), "arena"),
      tile(bytes(unshared), "without sharing", unshared ? `${percent(1 - arena / unshared)} saved` : null),
      tile(bytes(Math.max(0, ...alive)), "alive at once, at most", "less is not possible in this order"),
        tile(String(inPlace), "values written over an input"), tile(bytes(weights), "weights")),
    h("h2"), note && h("p", {}, note),
    lives.length > 0
      && h("figure", { class: "picture" },
      svg("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": "The arena over time" },
      marks.map((offset) => [svg("line", { class: "axis", x1: left, x2: wide, y1: y(offset), y2: y(offset) }),
        svg("text", { x: left - 8, y: y(offset) + 4, "text-anchor": "end" }, bytes(offset))]),
      lives.map((life) => svg("rect", { class: "life", "data-kind": kindOfRow[life.first],
        "data-href": rowLink(life.first), tabindex: "0", x: x(life.first),
        width: Math.max(1.5, x(life.last + 1) - x(life.first)),
        style: shade(life.first), y: y(life.offset + life.bytes),
          height: Math.max(1.5, y(life.offset) - y(life.offset + life.bytes)), "aria-label": life.name,
        ...tipped(`${life.name}: ${bytes(life.bytes)} at ${bytes(life.offset)}\nwritten by `
          + `${model.rows[life.first].label} (row ${life.first}), last read in row ${life.last}`) })),
      lives.filter((life) => x(life.last + 1) - x(life.first) > 7 * life.name.length
        && y(life.offset) - y(life.offset + life.bytes) > 15).map((life) =>
        svg("text", { class: "on", x: x(life.first) + 6, y: y(life.offset + life.bytes) + 14 }, life.name)),
      svg("text", { x: left, y: high - 6 }, "first call"),
        svg("text", { x: wide - 8, y: high - 6, "text-anchor": "end" }, `row ${steps - 1}`))),
    largest.length > 0
      && [h("h2", {}, "The largest"), table(["value", "size>", "at>", "from", "to"],
      largest.map((life) => h("tr", { tabindex: "0", "data-href": rowLink(life.first) },
      cell(h("a", { href: rowLink(life.first) }, life.name)), cell(bytes(life.bytes), "right"),
        cell(bytes(life.offset), "right"), cell(`${life.first} ${model.rows[life.first].label}`),
        cell(`${life.last} ${model.rows[life.last].label}`))))]];
}

function modelView(chosen) {
  const rows = model.nodes.map((node, at) => h("tr",
    { tabindex: "0", id: `node-${at}`, "data-href": node.rows.length ? rowLink(node.rows[0]) : undefined,
    "aria-selected": String(at) === chosen ? "true" : "false",
      "data-text": `${node.op} ${node.name} ${node.origin} ${node.outputs.join(" ")}`.toLowerCase() },
    cell(h("b", {}, node.op)), cell(h("div", { class: "cut", ...tipped(node.name) }, node.name)),
      cell(h("code", {}, node.types.join(", "))),
    cell([node.rows.slice(0, 4).map((row) => h("a", { href: rowLink(row), class: "chip" },
      model.rows[row].kernel === null ? model.rows[row].kind : `k${model.rows[row].kernel} ${model.rows[row].label}`)),
      node.fate !== "computed" && h("span", { class: "quiet" }, node.fate)]),
        cell([h("span", { class: "quiet" }, node.origin || "–"),
        node.source && h("div", {}, h("code", {}, node.source))])));
  const filter = h("input", { class: "filter", type: "search", placeholder: "Only those that contain …",
    "aria-label": "Filter the nodes", oninput: () => {
    for (const row of rows) row.hidden = !row.dataset.text.includes(filter.value.toLowerCase());
  } });
  if (chosen !== undefined) queueMicrotask(() => {
    byId(`node-${chosen}`)?.scrollIntoView({ block: "center" });
    byId(`node-${chosen}`)?.focus();
  });
  return [h("h1", {}, "The model as it was read"),
    h("p", { class: "lead" }, "Its own nodes, where each was written, and the kernel that computes it now."), filter,
    table(["operator", "name", "makes", "computed by", "from"], rows)];
}

const missing = (what) => [h("h1", {}, "Nothing here"), h("p", {}, `There is no ${what} on this page. `,
  h("a", { href: "#/overview" }, "To the overview"))];

const VIEWS = {
  overview: ["Overview", overview, () => ""], dataflow: ["Dataflow", dataflow, () => model.rows.length],
    passes: ["Passes", passes, () => model.passes.runs.length],
  kernels: ["Kernels", (number, ...rest) => number === undefined ? kernelList() : kernelView(number, ...rest),
    () => model.kernels.length],
  memory: ["Memory", memory, () => bytes(model.memory.arena)], model: ["Model", modelView, () => model.nodes.length],
};

let turn = 0;

async function show() {
  const [name, ...words] = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decodeURIComponent);
  const view = VIEWS[name || "overview"], own = ++turn;
  byId("tip").hidden = true;
  const made = view ? await view[1](...words) : missing(name);
  if (own !== turn) return; // another address was asked for meanwhile
  const same = byId("main").dataset.view === `${name}/${words[0] || ""}`;
  const main = byId("main"), list = main.querySelector("[data-list]")?.scrollTop || 0;
  main.replaceChildren(...[made].flat(Infinity).filter((one) => one && one !== true));
  main.dataset.view = `${name}/${words[0] || ""}`;
  if (!same && words.length < 2 && !(name === "model" || name === "dataflow")) scrollTo(0, 0);
  const beside = main.querySelector("[data-list]");
  if (beside && same) beside.scrollTop = list;
  beside?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
  for (const link of byId("nav").children) {
    if (link.dataset.view === (name || "overview")) link.setAttribute("aria-current",
      "page"); else link.removeAttribute("aria-current");
  }
  document.title = `${[view ? view[0] : "", ...words].join(" ")} · ${model.model} · weft explore`;
  document.body.dataset.ready = location.hash || "#";
}

// -------------------------------------------------------------------------------------------------------------- search

let hits = [], hit = 0, entries;

function allEntries() {
  const list = Object.entries(VIEWS).map(([key, [name]]) => ["view", name, `#/${key}`, ""]);
  for (const kernel of model.kernels) list.push(["kernel", `${kernel.number} ${kernel.label}`,
    `#/kernels/${kernel.number}`, kernel.symbol]);
  model.passes.runs.forEach((run, at) => list.push(["pass", run.name, `#/passes/${at}`, run.reason]));
  model.nodes.forEach((node, at) => list.push(["node", node.name || node.outputs[0] || node.op, `#/model/${at}`,
    `${node.op} ${node.origin}`]));
  model.rows.forEach((row,
    at) => row.makes.forEach(([name, type]) => list.push(["value", name, `#/dataflow/${at}`, type])));
  return list.map((one) => [...one, `${one[0]} ${one[1]} ${one[3]}`.toLowerCase()]);
}

function search() {
  entries = entries || allEntries();
  const words = byId("query").value.toLowerCase().split(/\s+/).filter(Boolean);
  hits = entries.filter((one) => words.every((word) => one[4].includes(word))).slice(0, 60);
  choose(0);
}
function choose(at) {
  hit = Math.max(0, Math.min(hits.length - 1, at));
  byId("hits").replaceChildren(...hits.map(([kind, name, href, more], i) => h("li",
    { role: "option", "aria-selected": String(i === hit) },
    h("a", { href, tabindex: "-1", onclick: () => byId("palette").close() }, h("span", {}, kind), h("b", {}, name),
      h("span", { class: "cut" }, more)))),
    ...(hits.length ? [] : [h("li", { class: "quiet" }, "Nothing is called that.")]));
  byId("hits").children[hit]?.scrollIntoView({ block: "nearest" });
}
function openSearch() {
  byId("palette").showModal();
  byId("query").select();
  search();
}

// ---------------------------------------------------------------------------------------------------------------- keys

const KEYS = [["/ or Ctrl K", "search"], ["1 … 6", "the views"], ["j k", "down and up in a list"],
  ["← →", "schedule steps, or the pass before and after"], ["[ ]", "the tab before and after"],
  ["n p", "the next kernel, the previous one"], ["Enter", "open what has the focus"], ["t", "light or dark"],
    ["?", "this list"], ["Esc", "close"]];

function move(by) {
  const all = [...byId("main").querySelectorAll("[data-list] a, tr[tabindex]")].filter((one) => !one.hidden);
  const at = all.indexOf(document.activeElement);
  all[Math.max(0, Math.min(all.length - 1, at < 0 ? 0 : at + by))]?.focus();
}
function beside(selector, by) {
  const all = [...byId("main").querySelectorAll(selector)],
    at = all.findIndex((one) => one.hasAttribute("aria-current"));
  const next = all[at + by];
  if (next) location.hash = next.getAttribute("href");
}
function theme() {
  const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("weft-theme",
    root.dataset.theme); } catch { /* a page from a file may have no store: the choice lasts as long as the page */ }
}

function key(event) {
  if ((event.ctrlKey || event.metaKey) && event.key === "k") { event.preventDefault(); openSearch(); return; }
  if (event.ctrlKey || event.metaKey || event.altKey || byId("palette").open) return;
  if (event.target.matches("input, textarea")) return;
  const views = Object.keys(VIEWS);
  const action = {
    "/": openSearch, "?": () => byId("help").showModal(), t: theme, j: () => move(1), k: () => move(-1),
      ArrowLeft: () => beside(".list a", -1), ArrowRight: () => beside(".list a", 1),
    "[": () => beside(".tabs a", -1), "]": () => beside(".tabs a", 1),
      n: () => document.querySelector(".next")?.click(), p: () => document.querySelector(".previous")?.click(),
    Enter: () => { const href = event.target.dataset?.href; if (href) location.hash = href; },
  }[event.key] || (views[Number(event.key) - 1] && (() => { location.hash = `#/${views[Number(event.key) - 1]}`; }));
  if (!action || byId("help").open || (event.key.startsWith("Arrow") && event.target.matches("pre"))) return;
  if (event.key !== "Enter") event.preventDefault();
  action();
}

function listen() {
  addEventListener("hashchange", show);
  addEventListener("keydown", key);
  byId("find").addEventListener("click", openSearch);
  byId("theme").addEventListener("click", theme);
  byId("keys").addEventListener("click", () => byId("help").showModal());
  byId("query").addEventListener("input", search);
  byId("query").addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by) { event.preventDefault(); choose(hit + by); }
    if (event.key === "Escape") { event.preventDefault(); byId("palette").close(); } // not only the words
    if (event.key === "Enter"
      && hits[hit]) { event.preventDefault(); location.hash = hits[hit][2]; byId("palette").close(); }
  });
  for (const id of ["palette", "help"]) byId(id).addEventListener("click",
    (event) => { if (event.target === byId(id)) byId(id).close(); });
  byId("main").addEventListener("click", (event) => {
    const row = event.target.closest("[data-href]");
    if (row && !event.target.closest("a") && !String(getSelection())) location.hash = row.dataset.href;
  });
  addEventListener("pointermove", (event) => {
    const over = event.target.closest?.("[data-tip]"), tip = byId("tip");
    tip.hidden = !over;
    if (!over) return;
    tip.textContent = over.dataset.tip;
    const wide = tip.offsetWidth, tall = tip.offsetHeight;
    tip.style.left = `${Math.max(8, Math.min(innerWidth - wide - 8, event.clientX + 14))}px`;
    tip.style.top = `${event.clientY + 18 + tall > innerHeight ? event.clientY - tall - 12 : event.clientY + 18}px`;
  });
}

async function begin() {
  try {
    const kept = localStorage.getItem("weft-theme");
    if (kept) document.documentElement.dataset.theme = kept;
  } catch { /* as above */ }
  model = await unpack(0);
  kindOfRow = model.rows.map(kindOf);
  byId("model").append(h("b", {}, model.model), model.machine, h("br"), `Weft ${model.weft}`);
  byId("nav").append(...Object.entries(VIEWS).map(([key, [name, , count]]) => h("a",
    { href: `#/${key}`, "data-view": key }, name, h("span", {}, String(count())))));
  byId("help").append(h("h3", {}, "Keys"),
    h("table", {},
    KEYS.map(([keys, what]) => h("tr", {},
    h("td", {}, keys.split(" ").map((one) => one.length < 6 && one !== "or" ? h("kbd", {}, one) : ` ${one} `)),
    h("td", {}, what)))));
  listen();
  await show();
}
begin();
