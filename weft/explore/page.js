"use strict";
// The page of `weft explore`: addresses, search, keys. Views are in views.js, what they are made of in base.js.

const VIEWS = {
  overview: ["Overview", overview, () => ""],
  dataflow: ["Dataflow", dataflow, () => model.rows.length],
  passes: ["Passes", passes, () => model.passes.runs.length],
  kernels: ["Kernels", (number, ...rest) => number === undefined ? kernelList() : kernelView(number, ...rest),
    () => model.kernels.length],
  memory: ["Memory", memory, () => bytes(model.memory.arena)],
  model: ["Model", modelView, () => model.nodes.length],
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
    if (link.dataset.view === (name || "overview")) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${[view ? view[0] : "", ...words].join(" ")} · ${model.model} · weft explore`;
  document.body.dataset.ready = location.hash || "#";
}

// -------------------------------------------------------------------------------------------------------------- search

let hits = [], hit = 0, entries;

// Everything that has a name: [kind, name, address, more, the words that are looked for].
function allEntries() {
  const list = Object.entries(VIEWS).map(([key, [name]]) => ["view", name, `#/${key}`, ""]);
  for (const { number, label, symbol } of model.kernels) {
    list.push(["kernel", `${number} ${label}`, `#/kernels/${number}`, symbol]);
  }
  model.passes.runs.forEach((run, at) => list.push(["pass", run.name, `#/passes/${at}`, run.reason]));
  model.nodes.forEach((node, at) => {
    list.push(["node", node.name || node.outputs[0] || node.op, `#/model/${at}`, `${node.op} ${node.origin}`]);
  });
  model.rows.forEach((row, at) => row.makes.forEach(([name, type]) => {
    list.push(["value", name, `#/dataflow/${at}`, type]);
  }));
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
  const items = hits.map(([kind, name, href, more], i) => h("li", { role: "option", "aria-selected": `${i === hit}` },
    h("a", { href, tabindex: "-1", onclick: () => byId("palette").close() },
      h("span", {}, kind), h("b", {}, name), h("span", { class: "cut" }, more))));
  byId("hits").replaceChildren(...(items.length ? items : [h("li", { class: "quiet" }, "Nothing is called that.")]));
  byId("hits").children[hit]?.scrollIntoView({ block: "nearest" });
}

function openSearch() {
  byId("palette").showModal();
  byId("query").select();
  search();
}

// ---------------------------------------------------------------------------------------------------------------- keys

const KEYS = [
  ["/ or Ctrl K", "search"],
  ["1 … 6", "the views"],
  ["j k", "down and up in a list"],
  ["← →", "schedule steps, or the pass before and after"],
  ["[ ]", "the tab before and after"],
  ["n p", "the next kernel, the previous one"],
  ["Enter", "open what has the focus"],
  ["t", "light or dark"],
  ["?", "this list"],
  ["Esc", "close"],
];

function move(by) {
  const all = [...byId("main").querySelectorAll("[data-list] a, tr[tabindex]")].filter((one) => !one.hidden);
  const at = all.indexOf(document.activeElement);
  all[Math.max(0, Math.min(all.length - 1, at < 0 ? 0 : at + by))]?.focus();
}

// Goes to what stands beside the chosen one of some links.
function beside(selector, by) {
  const all = [...byId("main").querySelectorAll(selector)];
  const next = all[all.findIndex((one) => one.hasAttribute("aria-current")) + by];
  if (next) location.hash = next.getAttribute("href");
}

function theme() {
  const root = document.documentElement, system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  root.dataset.theme = (root.dataset.theme || system) === "dark" ? "light" : "dark";
  try {
    localStorage.setItem("weft-theme", root.dataset.theme);
  } catch { /* a page from a file may have no store: the choice lasts as long as the page */ }
}

const ACTIONS = {
  "/": openSearch, "?": () => byId("help").showModal(), t: theme,
  j: () => move(1), k: () => move(-1),
  ArrowLeft: () => beside(".list a", -1), ArrowRight: () => beside(".list a", 1),
  "[": () => beside(".tabs a", -1), "]": () => beside(".tabs a", 1),
  n: () => document.querySelector(".next")?.click(), p: () => document.querySelector(".previous")?.click(),
};
Object.keys(VIEWS).forEach((name, at) => { ACTIONS[at + 1] = () => { location.hash = `#/${name}`; }; });

function key(event) {
  const isOpen = byId("palette").open || byId("help").open, withControl = event.ctrlKey || event.metaKey;
  if (withControl && event.key === "k" && !isOpen) {
    event.preventDefault();
    openSearch();
    return;
  }
  if (isOpen || withControl || event.altKey || event.target.matches("input:not(#query)")) return; // (a closed search)
  if (event.key === "Enter" && event.target.dataset?.href) location.hash = event.target.dataset.href;
  const scrolls = event.key.startsWith("Arrow") && event.target.matches("pre");
  if (!ACTIONS[event.key] || scrolls) return;
  event.preventDefault();
  ACTIONS[event.key]();
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
  byId("help").append(h("h3", {}, "Keys"), h("table", {}, KEYS.map(([keys, what]) => h("tr", {},
    h("td", {}, keys.split(" ").map((one) => one === "or" ? " or " : h("kbd", {}, one))),
    h("td", {}, what)))));
  listen();
  await show();
}
begin();
