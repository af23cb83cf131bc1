"use strict";

const KEYS = {
  preference: { ArrowLeft: "left", h: "left", ArrowRight: "right", l: "right", ArrowDown: "tie", t: "tie", ArrowUp: "both_bad", b: "both_bad" },
  guess: { ArrowLeft: "left", h: "left", ArrowRight: "right", l: "right", ArrowDown: "unsure", t: "unsure" },
};
const ASKED = { preference: "Which one is better?", guess: "Which one did the trained model write?" };
// A key pressed twice by mistake must not judge a pair that nobody has seen.
const LEAST_LOOK_MS = 250;

const element = (id) => document.getElementById(id);
const all = (selector) => [...document.querySelectorAll(selector)];

let progress = null;
let shownAt = 0;
let busy = false;
let guessing = false;

// ---------------------------------------------------------------------------------------------------------------- server

async function ask(path, sent) {
  const options = sent === undefined ? {} : { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(sent) };
  const response = await fetch(path, options);
  const found = await response.json();
  if (!response.ok) throw Object.assign(new Error(found.error), { status: response.status });
  return found;
}

/** One thing at a time; what goes wrong is said, and nothing is lost by it. */
async function doing(work) {
  if (busy) return;
  busy = true;
  document.body.classList.add("busy");
  try {
    await work();
    element("notice").hidden = true;
  } catch (error) {
    tell(error);
  } finally {
    busy = false;
    document.body.classList.remove("busy");
  }
}

function tell(error) {
  if (error.status === 401) return show("enter");
  const unreachable = "The page's server does not answer, so the last answer may not be kept. Start grpo review again, then load this page again.";
  element("notice").querySelector("p").textContent = error.status ? error.message : unreachable;
  element("reload").hidden = error.status !== undefined && error.status !== 409 && error.status < 500;
  element("notice").hidden = false;
  element("notice").scrollIntoView({ block: "nearest" });
}

// ---------------------------------------------------------------------------------------------------------------- screen

function show(id) {
  for (const part of ["enter", "pair", "between", "done"]) element(part).hidden = part !== id;
  for (const button of ["leave", "written"]) element(button).hidden = id === "enter";
  if (id === "enter") element("name").focus();
}

/** Whatever comes next for this reviewer: his name, a pair, or the end. */
async function proceed(found) {
  progress = found;
  if (progress.reviewer === null) return show("enter");
  const { next, preference, guess } = progress;
  element("leave").textContent = `${progress.reviewer} ×`;
  for (const button of all(".undo")) button.disabled = !progress.can_undo;
  element("bar").value = (preference.answered + guess.answered) / (preference.total + guess.total);
  if (next === null) {
    element("place").textContent = "";
    element("judged").textContent = `You judged ${preference.total} pairs.`;
    return show("done");
  }
  if (next.question === "preference") guessing = false;
  if (next.question === "guess" && guess.answered === 0 && !guessing) {
    element("place").textContent = `all ${preference.total} judged`;
    element("guesses").textContent = guess.total;
    return show("between");
  }
  await showPair(next);
}

async function showPair({ question, position }) {
  const pair = await ask(`/api/pair/${position}?pairs=${progress.pairs}`);
  const count = progress[question];
  element("place").textContent = `${question === "guess" ? "guess " : ""}${count.answered + 1} of ${count.total}`;
  element("asked").textContent = ASKED[question];
  element("prompt").innerHTML = pair.prompt_html;
  element("left").querySelector(".text").innerHTML = pair.left_html;
  element("right").querySelector(".text").innerHTML = pair.right_html;
  for (const tag of all(".tag")) tag.setAttribute("aria-pressed", "false");
  for (const button of all(".choice")) button.hidden = button.dataset.question !== question;
  for (const part of all(".tags, .reason")) part.hidden = question === "guess";
  element("reason").value = "";
  show("pair");
  document.activeElement.blur();
  window.scrollTo(0, 0);
  shownAt = performance.now();
}

// --------------------------------------------------------------------------------------------------------------- answers

function tagsOf(side) {
  return [...element(side).querySelectorAll('.tag[aria-pressed="true"]')].map((tag) => tag.dataset.tag);
}

function choose(choice) {
  const looked = performance.now() - shownAt;
  if (element("pair").hidden || looked < LEAST_LOOK_MS) return;
  const preferring = progress.next.question === "preference";
  doing(async () =>
    proceed(
      await ask("/api/vote", {
        ...progress.next,
        pairs: progress.pairs,
        choice,
        reason: element("reason").value,
        left_tags: preferring ? tagsOf("left") : [],
        right_tags: preferring ? tagsOf("right") : [],
        seconds: looked / 1000,
      }),
    ),
  );
}

function undo() {
  if (progress?.can_undo) doing(async () => proceed(await ask("/api/undo", { pairs: progress.pairs })));
}

function toggle(button) {
  button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
}

function toggleTag(key) {
  const place = (Number(key) + 9) % 10;
  const tags = all(".tag");
  if (!element("pair").hidden && progress.next.question === "preference" && place < tags.length) toggle(tags[place]);
}

function beginGuessing() {
  guessing = true;
  doing(() => proceed(progress));
}

function setWritten(written) {
  document.body.classList.toggle("as-written", written);
  element("written").setAttribute("aria-pressed", String(written));
}

function turnTheme() {
  const dark = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  document.documentElement.dataset.theme = dark === "dark" ? "light" : "dark";
  localStorage.setItem("theme", document.documentElement.dataset.theme);
}

// ------------------------------------------------------------------------------------------------------------------ keys

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || element("help").open) return;
  if (event.target === element("reason") && (event.key === "Escape" || (event.key === "Enter" && !event.shiftKey))) {
    event.preventDefault();
    return element("reason").blur();
  }
  if (event.target.matches("input, textarea") || event.repeat) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const choice = element("pair").hidden ? undefined : KEYS[progress.next.question][key];
  if (choice !== undefined) choose(choice);
  else if (/^[0-9]$/.test(key)) toggleTag(key);
  else if (key === "u") undo();
  else if (key === "m") setWritten(!document.body.classList.contains("as-written"));
  else if (key === "d") turnTheme();
  else if (key === "?") element("help").showModal();
  else if (key === "r" && !element("pair").hidden && progress.next.question === "preference") element("reason").focus();
  else if (key === "Enter" && !element("between").hidden && !event.target.matches("button")) beginGuessing();
  else return;
  event.preventDefault();
}

// ----------------------------------------------------------------------------------------------------------------- start

async function start() {
  const token = new URLSearchParams(location.search).get("token");
  if (token !== null) {
    history.replaceState(null, "", "/");
    await ask("/api/enter", { token });
  }
  await proceed(await ask("/api/progress"));
}

const theme = localStorage.getItem("theme");
if (theme !== null) document.documentElement.dataset.theme = theme;
document.addEventListener("keydown", onKey);
element("enter").addEventListener("submit", (event) => {
  event.preventDefault();
  doing(async () => {
    await ask("/api/enter", { name: element("name").value });
    await proceed(await ask("/api/progress"));
  });
});
element("leave").addEventListener("click", () =>
  doing(async () => {
    await ask("/api/leave", {});
    location.reload();
  }),
);
element("written").addEventListener("click", () => setWritten(!document.body.classList.contains("as-written")));
element("theme").addEventListener("click", turnTheme);
element("ask").addEventListener("click", () => element("help").showModal());
element("reload").addEventListener("click", () => location.reload());
element("go").addEventListener("click", beginGuessing);
for (const button of all(".choice")) button.addEventListener("click", () => choose(button.dataset.choice));
for (const button of all(".undo")) button.addEventListener("click", undo);
for (const tag of all(".tag")) tag.addEventListener("click", () => toggle(tag));
doing(start);
