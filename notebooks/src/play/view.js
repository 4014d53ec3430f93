// @ts-check
/**
 * The page: what is chosen, what the worker answers, and the sentence for each state.
 *
 * The address has the settings, as in `play.html#scene=classes&clients=12&images=40&epochs=5&seed=3`, and
 * with `&play=8` the page plays to round 8. The reader's own groups are in it as turns and classes, as in
 * `groups=0-0123456789,2-0123456789`.
 */
import { MARKS, colour, drawCurves, drawGamma, drawStar, element, paint, tag } from "./charts.js";
import { numbered } from "./engine.js";
import { SCENES, groupsOf, groupsText, makeClients, trueGroups, unpacked } from "./scenes.js";

const ROUNDS = 12; // to which Play goes, and then as many again
const PACE = 900; // milliseconds for each round, so that the eye can follow
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const packed = unpacked(JSON.parse(element("digits").textContent));

// --- The worker, from the scripts of this page, so that it works from the disk, too ---------------

const source = ["engine", "worker"].map((id) => element(id).textContent).join("\n");
const worker = new Worker(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
/** @type {Map<number, {done: (answer: any) => void, heard?: (progress: number) => void}>} */
const waiting = new Map();
let asked = 0;
worker.onmessage = (/** @type {MessageEvent} */ { data: { id, progress, answer } }) => {
  if (progress !== undefined) return waiting.get(id)?.heard?.(progress);
  waiting.get(id)?.done(answer);
  waiting.delete(id);
};

/**
 * Ask the worker. A long answer tells how far it is, and is null if something else was asked before it came.
 * @param {string} kind @param {any} [value] @param {(progress: number) => void} [heard] @returns {Promise<any>}
 */
function ask(kind, value, heard) {
  worker.postMessage({ kind, id: ++asked, value });
  return new Promise((done) => waiting.set(asked, { done, heard }));
}
worker.postMessage({ kind: "digits", value: packed });

// --- The state ------------------------------------------------------------------------------------

/**
 * A federation that trains, and what is known of it. What waits for the worker keeps its run, and
 * does nothing if the reader has begun another one in the meantime.
 * @typedef {{setting: import("./scenes.js").Setting, clients: import("./scenes.js").SceneClient[], truth: number[],
 *   rounds: import("./worker.js").Round[], hand: import("./worker.js").Hand | null,
 *   shown: number, pending: Promise<import("./worker.js").Round | null> | null, splitting: boolean}} Run  `shown` counts from 1, and is
 *   0 before the first round; `pending` is the round that the worker computes now
 */
/** @type {Run} */
let run;
let plays = 0, playing = 0; // how often the reader began to play, and which of these goes on, or 0
let groups = SCENES.four.groups, seed = 1;

/** The round that is shown. @returns {import("./worker.js").Round | undefined} */
const now = () => run.rounds[run.shown - 1];

/** Begin again, with one round, so that there is something to see. @returns {Promise<boolean>} whether no other run has begun */
async function restart() {
  const number = (/** @type {string} */ id) => Number(element(id).value);
  setPlaying(false);
  const setting = { groups, clients: number("clients"), images: number("images"), epochs: number("epochs"), seed };
  const clients = makeClients(packed, setting), truth = trueGroups(clients, groups);
  /** @type {Run} */
  const mine = { setting, clients, truth, rounds: [], hand: null, shown: 0, pending: null, splitting: false };
  run = mine;
  writeAddress();
  drawClients();
  tell();
  mine.pending = ask("start", setting).then((first) => arrive(mine, first));
  return (await mine.pending) !== null;
}

/** Train for one round, or wait for the one that trains already. @returns {Promise<import("./worker.js").Round | null>} none if the run has no next round now */
async function step() {
  const mine = run;
  if (mine.splitting) return null;
  return (mine.pending ??= ask("step").then((next) => arrive(mine, next)));
}

/** Add a round to its run, unless another run has begun. @param {Run} mine @param {import("./worker.js").Round} round */
function arrive(mine, round) {
  if (run !== mine) return null;
  mine.pending = null;
  const before = now()?.points;
  mine.rounds.push(round);
  if (mine.hand && round.hand !== null) mine.hand.accuracies.push(round.hand);
  show(mine.rounds.length, before);
  return round;
}

/** Split by hand in the round that is shown, and pause to look at it; or stop the training that follows. */
async function splitByHand() {
  const mine = run, from = mine.shown, last = mine.rounds.length;
  setPlaying(false);
  if (mine.splitting) return worker.postMessage({ kind: "stop" });
  mine.splitting = true;
  tell();
  const hand = await ask("split", from, (progress) => {
    if (run === mine) element("state").textContent = `You split in round ${from}. The clusters’ models train from there: round ${progress} of ${last} …`;
  });
  if (run !== mine) return;
  mine.splitting = false;
  if (hand) mine.hand = hand;
  show(from);
}

/** @param {boolean} on */
function setPlaying(on) {
  playing = on ? ++plays : 0;
  element("play").textContent = on ? "Pause" : "Play";
}

/** Play until the server splits and then until the axis is full, or without a pause until another round. @param {number} [until] */
async function play(until) {
  const mine = run, last = until ?? Math.ceil((mine.rounds.length + 1) / ROUNDS) * ROUNDS;
  setPlaying(true);
  const own = playing;
  while (own === playing && mine.rounds.length < last) {
    const began = performance.now(), round = await step();
    if (!round || (until === undefined && round.fired)) break;
    await new Promise((resolve) => setTimeout(resolve, Math.max(0, PACE - (performance.now() - began))));
  }
  if (own === playing) setPlaying(false);
}

// --- What is seen ---------------------------------------------------------------------------------

/** The clusters that are known in a round: OCFL's, or else those of the split by hand. @param {import("./worker.js").Round} round */
function foundIn({ ocfl, round }) {
  return ocfl ?? (run.hand && run.hand.from <= round ? run.hand.labels : null);
}

/** Show a round; the arrows come from where they were. @param {number} round @param {number[][]} [before] */
function show(round, before) {
  const mine = run, { clients, truth, rounds } = mine;
  if (!rounds[round - 1]) return;
  const { points, gamma, ocfl, fired } = rounds[round - 1];
  mine.shown = round;
  const found = foundIn(rounds[round - 1]), began = performance.now(), time = before && !calm.matches ? 450 : 0;
  const frame = () => {
    if (run !== mine || mine.shown !== round) return;
    const share = time ? Math.min(1, (performance.now() - began) / time) : 1, eased = share * share * (3 - 2 * share);
    drawStar(points.map((point, i) => point.map((value, axis) => value * eased + (before?.[i][axis] ?? 0) * (1 - eased))), truth, found);
    if (share < 1) requestAnimationFrame(frame);
  };
  frame();
  drawGamma(gamma, found);
  drawBothCurves();
  const kept = ocfl && !fired && clustering(ocfl).count > 1;
  element("which").textContent = kept ? "of the one model, had it been kept" : "where each client pulls the one model";
  clients.forEach((_, i) => element(`client-${i}`).style.setProperty("--own", found ? colour(found[i]) : "var(--line)"));
  tell();
}

function drawBothCurves() {
  const { rounds, hand, shown } = run;
  const axis = Math.max(ROUNDS, rounds.length), heat = rounds.map((round) => round.temperature);
  const low = Math.floor(10 * Math.min(...heat) - 0.3) / 10, high = Math.ceil(10 * Math.max(...heat) + 0.3) / 10;
  const fired = rounds.find((round) => round.fired);
  const rings = [];
  if (fired) rings.push({ round: fired.round, value: fired.temperature, words: "first rise", look: "accent" });
  if (hand && hand.from !== fired?.round) rings.push({ round: hand.from, value: heat[hand.from - 1], words: "you", look: "hand" });
  const until = heat.map((value, t) => (fired && t >= fired.round ? null : value));
  const after = heat.map((value, t) => (fired && t >= fired.round - 1 ? value : null));
  const curves = fired
    ? [{ values: until, look: "main" }, { name: "", values: after, look: "one" }]
    : [{ name: "", values: heat, look: "main" }];
  const two = (/** @type {number} */ value) => value.toFixed(2);
  drawCurves(element("temperature"), "Temperature", curves, axis, [Math.max(0, low), high], two, { shown, rings });
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
  const { clients, truth } = run;
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
  run.clients.forEach(({ train }, i) => {
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
  const { truth } = run, count = Math.max(...labels) + 1, right = `${numbered(labels)}` === `${numbered(truth)}`;
  const many = ["one cluster", "two clusters", "three clusters", "four clusters", "five clusters", "six clusters"][count - 1];
  const verdict = right
    ? count > 1 ? "exactly the true groups" : "and there is indeed one kind of client"
    : count > 1 ? new Set(truth).size > 1 ? "not quite the true groups" : "though all clients are alike" : "though the clients come in groups";
  return { count, words: `${many}, ${verdict}` };
}

/** Say what the round that is shown means. */
function tell() {
  const { rounds, shown, splitting } = run;
  element("state").innerHTML = sentence();
  element("split").disabled = !rounds.length;
  element("step").disabled = element("play").disabled = !rounds.length || splitting;
  element("split").textContent = splitting ? "Stop" : "Cluster now";
  const review = element("review");
  [review.max, review.value, review.disabled] = [Math.max(1, rounds.length), shown, rounds.length < 2 || splitting];
  element("reviewed").textContent = `${shown} of ${rounds.length}`;
}

function sentence() {
  const { rounds, hand, shown } = run, now = rounds[shown - 1], before = rounds[shown - 2];
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

const CHOICES = ["scene", "clients", "images", "epochs"];
const OWN = "own"; // the scene's name when the reader has changed the groups

/** Choose what a list of settings names. @param {URLSearchParams} named @returns {string[]} what the page does not offer */
function choose(named) {
  const written = [...named].filter(([name, value]) => {
    if (name === "play") return /^\d*$/.test(value);
    if (name === "seed") return /^\d{1,9}$/.test(value);
    if (name === "groups") return groupsOf(value) !== null;
    return CHOICES.includes(name) && [...element(name).options].some((option) => option.value === value);
  });
  for (const [name, value] of written) if (CHOICES.includes(name)) element(name).value = value;
  const wanted = new Map(written), own = wanted.get("groups");
  groups = own ? groupsOf(own) ?? groups : SCENES[element("scene").value]?.groups ?? groups;
  seed = Number(wanted.get("seed") ?? seed);
  nameScene();
  return [...named].filter(([name]) => !wanted.has(name)).map(([name, value]) => `${name}=${value}`);
}

/** Name the scene that the groups are. The reader's own have a name, too, so that each scene leads back. */
function nameScene() {
  const text = groupsText(groups), chosen = element("scene").value;
  const names = Object.keys(SCENES).filter((name) => groupsText(SCENES[name].groups) === text);
  const name = names.includes(chosen) ? chosen : names[0] ?? OWN;
  element("scene").querySelector(`[value=${OWN}]`).hidden = name !== OWN;
  element("scene").value = name;
}

/** The settings as an address has them. */
function settingsText() {
  const { scene, ...others } = Object.fromEntries(CHOICES.map((id) => [id, element(id).value]));
  return `${new URLSearchParams({ ...(scene === OWN ? { groups: groupsText(groups) } : { scene }), ...others, seed: `${seed}` })}`;
}

/** Write the settings into the address, so that it can be shared. */
function writeAddress() {
  try {
    history.replaceState(null, "", `#${settingsText()}`);
  } catch {
    // A frame that has no address of its own, as in JupyterLab
  }
}

/** Begin with what the address says, unless it names a part of the page, or what is there already. */
async function readAddress() {
  const text = location.hash.slice(1), part = text && document.getElementById(text);
  const named = new URLSearchParams(part ? "" : text);
  if (run && (part || text === settingsText())) return;
  const unknown = choose(named), until = named.has("play") ? Number(named.get("play")) || ROUNDS : 0;
  element("notice").textContent = unknown.length ? `The address asks for ${unknown.join(", ")}, which this page does not offer. The rest is as the address says.` : "";
  if ((await restart()) && until) play(until);
}

element("scene").innerHTML = Object.entries(SCENES).map(([key, { name }]) => `<option value="${key}">${name}</option>`).join("") + `<option value="${OWN}" hidden>Your own groups</option>`;
for (const id of CHOICES) {
  element(id).onchange = () => {
    if (id === "scene") groups = SCENES[element(id).value]?.groups ?? groups;
    restart();
  };
}
for (const question of document.querySelectorAll("[data-try]")) {
  /** @type {HTMLElement} */ (question).onclick = async () => {
    choose(new URLSearchParams(/** @type {HTMLElement} */ (question).dataset.try));
    scrollTo({ top: 0, behavior: calm.matches ? "auto" : "smooth" });
    if (await restart()) play();
  };
}
element("play").onclick = () => (playing ? setPlaying(false) : play());
element("step").onclick = () => { setPlaying(false); step(); };
element("restart").onclick = restart;
element("split").onclick = splitByHand;
element("draw").onclick = () => { seed++; restart(); };
addEventListener("hashchange", readAddress);
element("review").oninput = () => { setPlaying(false); show(Number(element("review").value)); };
matchMedia("(prefers-color-scheme: dark)").onchange = () => { drawDigits(); if (now()) show(run.shown); };
element("gamma").onpointermove = (/** @type {PointerEvent} */ event) => {
  const { width, height } = element("gamma").getBoundingClientRect(), m = run.clients.length;
  const [i, j] = [Math.floor((event.offsetY / height) * m), Math.floor((event.offsetX / width) * m)];
  const distance = now()?.gamma[i]?.[j];
  if (distance !== undefined) element("pair").textContent = `Clients ${i + 1} and ${j + 1}: ${distance.toFixed(2)}.`;
};

/** Give a class to another group; no group loses its last one. @param {number} label @param {number} from @param {number} to */
function moveClass(label, from, to) {
  if (from === to || groups[from].classes.length < 2) return;
  groups = groups.map((group, g) => ({
    ...group,
    classes: g === from ? group.classes.filter((c) => c !== label) : g === to ? [...group.classes, label].sort() : group.classes,
  }));
  nameScene();
  restart();
  element("groups").querySelector(`[data-class="${label}"]`)?.focus();
}

element("groups").onclick = (/** @type {any} */ { target }) => {
  const { turn, class: label, group } = target.dataset;
  if (turn !== undefined) {
    groups = groups.map((own, g) => (g === Number(turn) ? { ...own, turns: (own.turns + 1) % 4 } : own));
    nameScene();
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

// A link to a lesson leads to its page in the book. Where this page is a file, it names the lesson's file
document.onclick = ({ target }) => {
  const link = /** @type {HTMLElement | null} */ (/** @type {Element} */ (target).closest("[data-page]"));
  if (link) element("lesson-file").textContent = `notebooks/${link.dataset.page}.ipynb`;
};

readAddress();
