"use strict";
// What the views of `weft explore` are made of: elements, data, figures, code. The data are pieces of deflated JSON in
// <script type="text/plain"> elements: data-0 is the model, data-1 … are its kernels, unpacked when they are shown.
// Whatever comes from a model goes into the page as text: `h` and `svg` never read HTML.

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
const link = (href, words) => h("a", { href }, words);

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
  return h("div", { class: "tile" },
    h("b", {}, figure, unit.length > 0 && h("i", {}, ` ${unit.join(" ")}`)),
    h("span", {}, name),
    more && h("small", {}, more));
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
const tipped = (...lines) => ({ "data-tip": lines.filter(Boolean).join("\n") });

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

// Loops are nested deeply: half of their indentation leaves room for what they do.
function drawn(line, language) {
  return language === "loops" ? line.replace(/^ +/, (all) => all.slice(all.length >> 1)) : line;
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
    const words = lines.slice(at, at + CHUNK).map((line) => drawn(line, language));
    const style = { "contain-intrinsic-height": `auto ${20 * words.length}px` };
    pre.append(h("div", { "data-language": language, style }, words.join("\n")));
    watcher.observe(pre.lastChild);
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
    const kind = { "+": "plus", "-": "minus" }[sign];
    pre.append(h("div", { class: kind }, coloured(drawn(line, language), language)));
  });
  flush();
  return pre;
}
