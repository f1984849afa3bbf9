// Search, filters, order and comparison of the catalogue; the theme; copying commands. The pages are whole without it.
"use strict";

// The theme is set before the page is drawn, so that it does not flash.
const root = document.documentElement;
const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const remembered = (value) => {
  try {
    if (value) localStorage.setItem("theme", value);
    return localStorage.getItem("theme");
  } catch {
    return null; // storage may be forbidden: the theme then lasts as long as the page
  }
};
if (["dark", "light"].includes(remembered())) root.dataset.theme = remembered();

/** An element with properties and children; text is never read as HTML. */
const make = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};
const $ = (id) => document.getElementById(id);

document.addEventListener("DOMContentLoaded", () => {
  themeButton();
  document.querySelectorAll("pre").forEach(copyButton);
  if ($("zoo")) browse();
});

function themeButton() {
  const button = $("theme");
  const show = () => (button.textContent = dark() ? "Light theme" : "Dark theme");
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    remembered(root.dataset.theme);
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();
}

function copyButton(pre) {
  const button = make("button", { type: "button", className: "copy" }, "Copy");
  const said = make("span", { className: "unseen" });
  button.setAttribute("aria-label", `Copy: ${pre.textContent.trim().split("\n")[0]}`);
  said.setAttribute("role", "status");
  button.addEventListener("click", async () => {
    const done = await copy(pre);
    button.textContent = done ? "Copied" : "Selected";
    said.textContent = done ? "Copied" : "Selected: copy it with the keyboard";
    setTimeout(() => ((button.textContent = "Copy"), (said.textContent = "")), 2000);
  });
  const box = make("div", { className: "copied" });
  pre.replaceWith(box);
  box.append(pre, button, said);
}

/** Copies a text, or selects it where a page may not write to the clipboard (plain http). */
async function copy(pre) {
  try {
    await navigator.clipboard.writeText(pre.textContent.trimEnd());
    return true;
  } catch {
    getSelection().selectAllChildren(pre);
    return false;
  }
}

function browse() {
  const MOST = 4;
  const SCORES = { top1: "top-1", top5: "top-5", pairwise: "pairwise", mean_top1: "mean top-1", mean_top5: "mean top-5" };
  const HIGHEST_FIRST = ["top1", "top5", "pairwise"];
  const FILTERS = ["family", "arch", "kind", "origin"];

  const data = JSON.parse($("data").textContent);
  const byName = new Map(data.map((one) => [one.name, one]));
  const table = $("zoo");
  const form = document.querySelector("form");
  const rows = new Map([...table.querySelectorAll("tr[data-name]")].map((row) => [row.dataset.name, row]));
  const groups = [...table.querySelectorAll("tbody")];
  const flat = table.appendChild(make("tbody"));
  const heads = [...table.querySelectorAll("th[data-sort]")];
  const state = { q: "", family: "", arch: "", kind: "", origin: "", sort: "family", compare: [] };

  // The state lives in the address after "#", which works from a file too, so that a view can be shared.

  function read() {
    const told = new URLSearchParams(location.hash.slice(1));
    for (const key of ["q", ...FILTERS]) {
      state[key] = told.get(key) || "";
      form.elements[key].value = state[key];
    }
    const sort = told.get("sort") || "family";
    state.sort = heads.some((head) => head.dataset.sort === sort.replace("-", "")) ? sort : "family";
    const named = (told.get("compare") || "").split(",").filter((name) => byName.has(name));
    state.compare = [...new Set(named)].slice(0, MOST);
  }

  function write() {
    const told = Object.entries(state).filter(([key, value]) => value.length && !(key === "sort" && value === "family"));
    const hash = new URLSearchParams(told.map(([key, value]) => [key, String(value)])).toString().replaceAll("%2C", ",");
    history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
  }

  const matches = (one) => {
    const words = state.q.toLowerCase().split(/\s+/).filter(Boolean);
    return words.every((word) => one.search.includes(word)) && FILTERS.every((key) => !state[key] || one[key] === state[key]);
  };

  // Order

  const sortKey = () => state.sort.replace("-", "");
  const value = (one, key) => (key in SCORES ? one.scores[key] : one[key]);

  function compareBy(key, backwards) {
    const sign = (HIGHEST_FIRST.includes(key) ? -1 : 1) * (backwards ? -1 : 1);
    return (a, b) => {
      const [x, y] = [value(a, key), value(b, key)];
      if (x === null || y === null) return (x === null) - (y === null); // not known comes last, both ways
      return (x < y ? -1 : x > y ? 1 : 0) * sign || (a.name < b.name ? -1 : 1);
    };
  }

  let order = null; // of the rows as they stand: they move only when it changes, since a row that moves loses its click

  function move(key, backwards) {
    if (order === state.sort) return;
    order = state.sort;
    if (key === "family") {
      data.forEach((one) => groups.find((group) => group.dataset.family === one.family).append(rows.get(one.name)));
      (backwards ? [...groups].reverse() : groups).forEach((group) => table.append(group));
    } else {
      [...data].sort(compareBy(key, backwards)).forEach((one) => flat.append(rows.get(one.name)));
    }
  }

  function arrange(shown) {
    const [key, backwards] = [sortKey(), state.sort.startsWith("-")];
    move(key, backwards);
    const seen = new Set(shown.map((one) => one.name));
    rows.forEach((row, name) => (row.hidden = !seen.has(name)));
    groups.forEach((group) => (group.hidden = !group.querySelector("tr[data-name]:not([hidden])")));
    const down = HIGHEST_FIRST.includes(key) !== backwards;
    heads.forEach((head) => {
      if (head.dataset.sort === key) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  }

  function show() {
    const shown = data.filter(matches);
    arrange(shown);
    const count = `${shown.length} checkpoint${shown.length === 1 ? "" : "s"}`;
    $("count").textContent = shown.length === data.length ? count : `${count} of ${data.length}`;
    $("none").hidden = shown.length > 0;
    $("caution").hidden = !(HIGHEST_FIRST.includes(sortKey()) && !comparable(shown));
    showChosen();
    showComparison();
  }

  const update = () => (write(), show());

  // Comparison

  const comparable = (some) => new Set(some.map((one) => one.judged_on || one.name)).size <= 1;

  function choose(name, wanted) {
    const refused = wanted && state.compare.length >= MOST;
    if (!refused) state.compare = wanted ? [...state.compare, name] : state.compare.filter((one) => one !== name);
    update();
    if (refused) $("chosen").textContent = `Four at most: take one out before you add ${name}.`;
  }

  function showChosen() {
    for (const [name, row] of rows) row.querySelector("input").checked = state.compare.includes(name);
    const number = state.compare.length;
    $("tray").hidden = false; // it speaks to screen readers even while it is empty
    $("tray").classList.toggle("empty", number === 0);
    const text = number ? `${state.compare.join(", ")}${number === 1 ? ": choose another to compare" : ""}` : "";
    $("chosen").textContent = text;
    $("compare").hidden = number < 2;
    $("clear").hidden = number < 1;
  }

  function showComparison() {
    const chosen = state.compare.map((name) => byName.get(name));
    const section = $("comparison");
    section.hidden = chosen.length < 2;
    if (section.hidden) return;
    $("apart").hidden = comparable(chosen);
    const caption = make("caption", {}, make("span", {}, chosen.map((one) => one.name).join(", ")));
    const head = make("tr", {}, make("td"), ...chosen.map(column));
    const scores = Object.entries(SCORES).map(([key, title]) => scoreRow(chosen, key, title));
    const labels = [...new Set(chosen.flatMap((one) => Object.keys(one.facts)))];
    const facts = ["judged on", ...labels].map((label) =>
      line(label, chosen.map((one) => (label === "judged on" ? one.judged_on : one.facts[label]) || "-")),
    );
    section.querySelector("table").replaceChildren(caption, make("thead", {}, head), make("tbody", {}, ...scores.filter(Boolean), ...facts));
  }

  function column(one) {
    const out = make("button", { type: "button", className: "plain" }, "Remove");
    out.setAttribute("aria-label", `Remove ${one.name} from the comparison`);
    out.addEventListener("click", () => {
      choose(one.name, false);
      (state.compare.length < 2 ? rows.get(one.name).querySelector("input") : $("comparison-title")).focus();
    });
    return make("th", { scope: "col" }, make("a", { href: one.page }, one.name), out);
  }

  function scoreRow(chosen, key, title) {
    const values = chosen.map((one) => one.scores[key]);
    if (values.every((score) => score === null)) return null;
    const best = comparable(chosen) ? Math.max(...values).toFixed(3) : null;
    const row = line(title, chosen.map((one) => scoreText(one, key)));
    [...row.cells].slice(1).forEach((cell, i) => {
      if (values[i] === null || values[i].toFixed(3) !== best) return;
      cell.className = "best";
      cell.append(make("span", { className: "unseen" }, " (highest)"));
    });
    return row;
  }

  function scoreText(one, key) {
    if (one.scores[key] === null) return "-";
    const seeds = one.seeds[key];
    const spread = seeds ? ` (${one.seeds.count} seeds: ${seeds.mean.toFixed(3)} ± ${seeds.stdev.toFixed(3)})` : "";
    return one.scores[key].toFixed(3) + spread;
  }

  function line(title, texts) {
    const same = texts.every((text) => text === texts[0]);
    const cells = texts.map((text) => make("td", {}, text));
    return make("tr", { className: same ? "same" : "" }, make("th", { scope: "row" }, title), ...cells);
  }

  // What a person does

  for (const head of heads) {
    const button = make("button", { type: "button" }, ...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const key = head.dataset.sort;
      state.sort = state.sort === key ? `-${key}` : key;
      update();
    });
  }
  for (const [name, row] of rows) {
    const box = make("input", { type: "checkbox" });
    box.setAttribute("aria-label", `Compare ${name}`);
    box.addEventListener("change", () => choose(name, box.checked));
    row.querySelector(".pick").append(box);
  }
  for (const event of ["input", "change"]) {
    form.addEventListener(event, () => {
      for (const key of ["q", ...FILTERS]) state[key] = form.elements[key].value;
      update();
    });
  }
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => {
    for (const key of ["q", ...FILTERS]) state[key] = "";
    update();
  });
  $("clear").addEventListener("click", () => {
    state.compare = [];
    update();
    form.elements.q.focus();
  });
  $("compare").addEventListener("click", () => {
    $("comparison").scrollIntoView();
    $("comparison-title").focus({ preventScroll: true });
  });
  addEventListener("hashchange", () => {
    if (location.hash && !location.hash.includes("=")) return; // the skip link
    read();
    show();
  });
  form.hidden = false;
  read();
  show();
  if (state.compare.length > 1) $("comparison").scrollIntoView({ behavior: "instant" });
}
