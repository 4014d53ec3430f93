// @ts-check
/**
 * The page: what is chosen, what the worker answers, and the sentence for each state.
 *
 * An address can choose as well, as in `play.html#scene=classes&clients=12&seed=3&play=8`, which plays
 * to round 8.
 */
import { MARKS, colour, drawCurves, drawGamma, drawStar, element, paint, tag } from "./charts.js";
import { numbered } from "./engine.js";
import { SCENES, makeClients, trueGroups, unpacked } from "./scenes.js";

const ROUNDS = 12; // to which Play goes, and then as many again
const PACE = 900; // milliseconds for each round, so that the eye can follow
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const packed = unpacked(JSON.parse(element("digits").textContent));

// --- The worker, from the scripts of this page, so that it works from the disk, too ---------------

const source = ["engine", "worker"].map((id) => element(id).textContent).join("\n");
const worker = new Worker(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
/** @type {Map<number, (answer: any) => void>} */
const waiting = new Map();
let asked = 0;
worker.onmessage = (/** @type {MessageEvent} */ { data }) => {
  waiting.get(data.id)?.(data.answer);
  waiting.delete(data.id);
};

/** Ask the worker. @param {string} kind @param {any} [value] @returns {Promise<any>} */
function ask(kind, value) {
  worker.postMessage({ kind, id: ++asked, value });
  return new Promise((resolve) => waiting.set(asked, resolve));
}
worker.postMessage({ kind: "digits", value: packed });

// --- The state ------------------------------------------------------------------------------------

const address = new URLSearchParams(location.hash.slice(1));
/** @type {import("./scenes.js").Setting} */
let setting;
/** @type {import("./scenes.js").SceneClient[]} */
let clients = [];
/** @type {number[]} */
let truth = [];
/** @type {import("./worker.js").Round[]} */
let rounds = [];
/** @type {import("./worker.js").Hand | null} */
let hand = null;
let shown = 0; // the round that the pictures show, from 1; 0 before the first
let playing = false, busy = false, version = 0, groups = SCENES.four.groups, seed = Number(address.get("seed") ?? 1);

/** Begin again, with one round, so that there is something to see. */
async function restart() {
  const own = ++version, number = (/** @type {string} */ id) => Number(element(id).value);
  setPlaying(false);
  setting = { groups, clients: number("clients"), images: number("images"), epochs: number("epochs"), seed };
  clients = makeClients(packed, setting);
  truth = trueGroups(clients, groups);
  [rounds, hand, shown, busy] = [[], null, 0, true];
  drawClients();
  tell();
  const first = await ask("start", setting);
  if (own !== version) return;
  busy = false;
  arrive(first);
}

/** Train for one round. */
async function step() {
  if (busy || !rounds.length) return;
  const own = version;
  busy = true;
  const next = await ask("step");
  if (own !== version) return;
  busy = false;
  arrive(next);
}

/** @param {import("./worker.js").Round} round */
function arrive(round) {
  const before = rounds[shown - 1]?.points;
  rounds.push(round);
  if (hand && round.hand !== null) hand.accuracies.push(round.hand);
  show(rounds.length, before);
}

/** Split by hand in the round that is shown, and pause to look at it. */
async function splitByHand() {
  const own = version, from = shown;
  setPlaying(false);
  element("state").textContent = `You split in round ${from}. The clusters’ models train from there …`;
  const found = await ask("split", from);
  if (own !== version) return;
  hand = found;
  show(from);
}

/** @param {boolean} on */
function setPlaying(on) {
  playing = on;
  element("play").textContent = on ? "Pause" : "Play";
}

/** Play until the server splits and then until the axis is full, or without a pause until another round. @param {number} [until] */
async function play(until) {
  const last = until ?? Math.ceil((rounds.length + 1) / ROUNDS) * ROUNDS;
  setPlaying(true);
  const own = version;
  while (playing && own === version && rounds.length < last) {
    const began = performance.now();
    await step();
    if (until === undefined && rounds[rounds.length - 1].fired) break;
    await new Promise((resolve) => setTimeout(resolve, Math.max(0, PACE - (performance.now() - began))));
  }
  if (own === version) setPlaying(false);
}

// --- What is seen ---------------------------------------------------------------------------------

/** The clusters that are known in a round: OCFL's, or else those of the split by hand. @param {number} round */
function foundIn(round) {
  return rounds[round - 1]?.ocfl ?? (hand && hand.from <= round ? hand.labels : null);
}

/** Show a round; the arrows come from where they were. @param {number} round @param {number[][]} [before] */
function show(round, before) {
  shown = round;
  const { points, gamma } = rounds[round - 1], found = foundIn(round);
  const own = version, began = performance.now(), time = before && !calm.matches ? 450 : 0;
  const frame = () => {
    if (own !== version || shown !== round) return;
    const share = time ? Math.min(1, (performance.now() - began) / time) : 1, eased = share * share * (3 - 2 * share);
    drawStar(points.map((point, i) => point.map((value, axis) => value * eased + (before?.[i][axis] ?? 0) * (1 - eased))), truth, found);
    if (share < 1) requestAnimationFrame(frame);
  };
  frame();
  drawGamma(gamma, found);
  drawBothCurves();
  const review = element("review");
  [review.max, review.value, review.disabled] = [rounds.length, round, rounds.length < 2];
  element("reviewed").textContent = `${round} of ${rounds.length}`;
  const { ocfl, fired } = rounds[round - 1], kept = ocfl && !fired && clustering(ocfl).count > 1;
  element("which").textContent = kept ? "of the one model, had it been kept" : "where each client pulls the one model";
  clients.forEach((_, i) => element(`client-${i}`).style.setProperty("--own", found ? colour(found[i]) : "var(--line)"));
  tell();
}

function drawBothCurves() {
  const axis = Math.max(ROUNDS, rounds.length), heat = rounds.map((round) => round.temperature);
  const low = Math.floor(10 * Math.min(...heat) - 0.3) / 10, high = Math.ceil(10 * Math.max(...heat) + 0.3) / 10;
  const fired = rounds.find((round) => round.fired);
  const rings = [];
  if (fired) rings.push({ round: fired.round, value: fired.temperature, words: "first rise", look: "accent" });
  if (hand && hand.from !== fired?.round) rings.push({ round: hand.from, value: heat[hand.from - 1], words: "you", look: "hand" });
  const until = heat.map((value, t) => (fired && t >= fired.round ? null : value));
  const after = heat.map((value, t) => (fired && t >= fired.round - 1 ? value : null));
  const curves = [{ name: "", values: until, look: "main" }, { name: "", values: after, look: "one" }];
  const two = (/** @type {number} */ value) => value.toFixed(2);
  drawCurves(element("temperature"), "Temperature", curves.slice(0, fired ? 2 : 1), axis, [Math.max(0, low), high], two, { shown, rings });
  /** @param {"one" | "alone" | "groups"} name */
  const values = (name) => rounds.map((round) => round[name]);
  const percent = (/** @type {number} */ value) => `${Math.round(100 * value)} %`;
  const yours = hand ? rounds.map((_, t) => hand?.accuracies[t + 1 - hand.from] ?? null) : [];
  drawCurves(element("accuracy"), "Accuracy", [
    { name: "one model", values: values("one"), look: "one" },
    { name: "alone", values: values("alone"), look: "alone" },
    ...(fired?.ocfl && clustering(fired.ocfl).count > 1 ? [{ name: "clusters", values: values("groups").map((v, t) => (t + 1 < fired.round ? null : v)), look: "main" }] : []),
    ...(hand ? [{ name: "your split", values: yours, look: "hand" }] : []),
  ], axis, [0, 1], percent, { shown });
}

/** Draw the groups: how they hold their images, and some digits of each client. */
function drawClients() {
  const names = groups.map((_, g) => clients.filter((client) => client.group === g).length);
  let first = 0;
  element("groups").innerHTML = groups.map((group, g) => {
    const cards = Array.from({ length: names[g] }, (_, k) =>
      `<div class="card" id="client-${first + k}"><canvas role="img" aria-label="Digits of client ${first + k + 1}"></canvas>${first + k + 1}</div>`);
    first += names[g];
    const chips = group.classes.length < 10 || groups.length === 3
      ? `<span class="chips">${group.classes.map((c) => `<button class="chip" draggable="true" data-class="${c}" data-group="${g}" aria-label="Class ${c}: move to the next group">${c}</button>`).join("")}</span>` : "";
    return `<div class="group" data-group="${g}"><div class="head"><svg viewBox="-5 -5 10 10" aria-hidden="true">${tag("path", { d: MARKS[g], fill: "currentColor" })}</svg>
      <span>${"ABCD"[g]}</span><button class="turn" data-turn="${g}" aria-label="Turn the images of group ${"ABCD"[g]}, now at ${90 * group.turns} degrees">↺ ${90 * group.turns}°</button>${chips}</div>
      <div class="cards">${cards.join("")}</div></div>`;
  }).join("");
  drawDigits();
  element("unseen").textContent = "which the server never sees. ↺ turns a group’s images" + (groups.length === 3 ? "; drag or press a class to move it." : ".");
  const kinds = new Set(truth).size, many = ["one group", "two groups", "three groups", "four groups"][kinds - 1];
  const number = { 8: "Eight", 12: "Twelve", 20: "Twenty", 32: "Thirty-two" }[clients.length];
  element("story").textContent = `${number} clients train one model to read digits. ` +
    (kinds < 2 ? "They all hold the same kind of images" : `They come in ${many} that need different models`) +
    ", but the server does not know that. It sees only where each client pulls the model. In which round should it stop training one model for all?";
}

/** Paint four digits of each client. */
function drawDigits() {
  clients.forEach(({ train }, i) => {
    const picks = [0, 1, 2, 3].map((k) => Math.floor((k * train.labels.length) / 4) % train.labels.length);
    paint(element(`client-${i}`).firstChild, 17, 17, (x, y) => {
      if (x === 8 || y === 8) return ["--ink", 0];
      const [column, row] = [x > 8 ? 1 : 0, y > 8 ? 1 : 0];
      return ["--ink", train.inputs[64 * picks[2 * row + column] + 8 * (y - 9 * row) + x - 9 * column]];
    });
  });
}

// --- The sentence ---------------------------------------------------------------------------------

/** @param {number[]} labels */
function clustering(labels) {
  const count = Math.max(...labels) + 1, right = `${numbered(labels)}` === `${numbered(truth)}`;
  const many = ["one cluster", "two clusters", "three clusters", "four clusters", "five clusters", "six clusters"][count - 1];
  const verdict = right
    ? count > 1 ? "exactly the true groups" : "and there is indeed one kind of client"
    : count > 1 ? new Set(truth).size > 1 ? "not quite the true groups" : "though all clients are alike" : "though the clients come in groups";
  return { count, words: `${many}, ${verdict}` };
}

/** Say what the round that is shown means. */
function tell() {
  element("state").innerHTML = sentence();
  element("split").disabled = element("step").disabled = element("play").disabled = !rounds.length;
}

function sentence() {
  const now = rounds[shown - 1], before = rounds[shown - 2];
  if (!now) return "The clients train for the first round …";
  const heat = `<b>${now.temperature.toFixed(3)}</b>`, percent = (/** @type {number} */ value) => `${Math.round(100 * value)} %`;
  const start = `<b>Round ${now.round}.</b> `;
  const own = hand?.accuracies[now.round - hand.from], split = hand && own !== undefined && hand.from < now.round;
  if (hand?.from === now.round && !now.fired) {
    const trigger = rounds.find((round) => round.fired);
    const same = trigger?.ocfl && `${trigger.ocfl}` === `${hand.labels}`;
    return `${start}You split here, and HDBSCAN finds ${clustering(hand.labels).words}. ` +
      (trigger ? `The trigger split in round ${trigger.round}, ${same ? "into the same clusters" : "into other clusters"}.` : "The temperature has not risen yet, so OCFL still waits. Play on, and compare.");
  }
  if (!before) return `${start}Every client has trained the same model on its own images. How far apart do their updates point? The temperature says ${heat}.`;
  const from = before.temperature.toFixed(3);
  if (now.fired) {
    const { count, words } = clustering(/** @type {number[]} */ (now.ocfl));
    return `${start}The temperature <b>rises</b> for the first time, from ${from} to ${heat}: the updates move apart, and the server splits. HDBSCAN finds <b>${words}</b>.` +
      (hand?.from === now.round ? " You split in the same round." : split ? ` You split in round ${hand.from}.` : "") +
      (count === 1 ? " One model stays: a rise says when to look, and not that there is something to find." : "") +
      (rounds.length === now.round && rounds.length < ROUNDS ? " Press Play to go on." : "");
  }
  if (now.ocfl) {
    const ways = clustering(now.ocfl).count > 1 ? `the models of the clusters read ${percent(now.groups)}, ` : "";
    return `${start}Of their own test images, ${ways}clients alone ${ways ? "" : "read "}${percent(now.alone)}, and one model for all ${percent(now.one)}.` +
      (split && ways ? ` Those of your split in round ${hand.from} read ${percent(own)}: ${gained(Math.round(100 * now.groups) - Math.round(100 * own))}.` : "");
  }
  return `${start}The temperature falls from ${from} to ${heat}: the updates come closer together, and the clients still learn the same things. The server waits.` +
    (split ? ` Your clusters have trained since round ${hand.from}, and read ${percent(own)} where one model reads ${percent(now.one)}.` : "");
}

/** Say what OCFL's waiting has gained over a split by hand. @param {number} difference  in points */
function gained(difference) {
  const points = Math.abs(difference);
  if (!points) return "here the round of the split makes no difference";
  return `the trigger’s round has ${difference > 0 ? "gained" : "lost"} ${points} ${points > 1 ? "points" : "point"} here`;
}

// --- What can be pressed --------------------------------------------------------------------------

element("scene").innerHTML = Object.entries(SCENES).map(([key, { name }]) => `<option value="${key}">${name}</option>`).join("");
const CHOICES = ["scene", "clients", "images", "epochs"];

/** Choose what a list of settings names. @param {URLSearchParams} named */
function choose(named) {
  for (const id of CHOICES) if (named.has(id)) element(id).value = named.get(id);
  groups = (SCENES[element("scene").value] ?? SCENES.four).groups;
}

for (const id of CHOICES) {
  element(id).onchange = () => {
    if (id === "scene") groups = SCENES[element(id).value].groups;
    restart();
  };
}
choose(address);
for (const question of document.querySelectorAll("[data-try]")) {
  /** @type {HTMLElement} */ (question).onclick = async () => {
    choose(new URLSearchParams(/** @type {HTMLElement} */ (question).dataset.try));
    scrollTo({ top: 0, behavior: calm.matches ? "auto" : "smooth" });
    await restart();
    play();
  };
}
element("play").onclick = () => (playing ? setPlaying(false) : play());
element("step").onclick = () => { setPlaying(false); step(); };
element("restart").onclick = restart;
element("split").onclick = splitByHand;
element("draw").onclick = () => { seed++; restart(); };
element("review").oninput = () => { setPlaying(false); show(Number(element("review").value)); };
matchMedia("(prefers-color-scheme: dark)").onchange = () => { drawDigits(); if (shown) show(shown); };
element("gamma").onpointermove = (/** @type {PointerEvent} */ event) => {
  const { width, height } = element("gamma").getBoundingClientRect(), m = clients.length;
  const [i, j] = [Math.floor((event.offsetY / height) * m), Math.floor((event.offsetX / width) * m)];
  const distance = rounds[shown - 1]?.gamma[i]?.[j];
  if (distance !== undefined) element("pair").textContent = `Clients ${i + 1} and ${j + 1}: ${distance.toFixed(2)}.`;
};

/** Give a class to another group; no group loses its last one. @param {number} label @param {number} from @param {number} to */
function moveClass(label, from, to) {
  if (from === to || groups[from].classes.length < 2) return;
  groups = groups.map((group, g) => ({
    ...group,
    classes: g === from ? group.classes.filter((c) => c !== label) : g === to ? [...group.classes, label].sort() : group.classes,
  }));
  restart();
  element("groups").querySelector(`[data-class="${label}"]`)?.focus();
}

element("groups").onclick = (/** @type {any} */ { target }) => {
  const { turn, class: label, group } = target.dataset;
  if (turn !== undefined) {
    groups = groups.map((own, g) => (g === Number(turn) ? { ...own, turns: (own.turns + 1) % 4 } : own));
    restart();
    element("groups").querySelector(`[data-turn="${turn}"]`)?.focus();
  } else if (label !== undefined) moveClass(Number(label), Number(group), (Number(group) + 1) % groups.length);
};
element("groups").ondragstart = (/** @type {any} */ { target, dataTransfer }) => dataTransfer.setData("text/plain", `${target.dataset.class} ${target.dataset.group}`);
element("groups").ondragover = (/** @type {DragEvent} */ event) => event.preventDefault();
element("groups").ondrop = (/** @type {any} */ event) => {
  event.preventDefault();
  const [label, from] = event.dataTransfer.getData("text/plain").split(" ").map(Number);
  const to = event.target.closest(".group")?.dataset.group;
  if (to !== undefined && groups[from]?.classes.includes(label)) moveClass(label, from, Number(to));
};

restart().then(() => {
  if (address.has("play")) play(Number(address.get("play")) || ROUNDS);
});
