// @ts-check
/**
 * The page: what is chosen, what the worker answers, and the sentence for each state.
 *
 * The address has the settings, as in `play.html#scene=classes&clients=12&images=40&epochs=5&rule=rise&seed=3`, and
 * with `&play=8` the page plays to round 8. The reader's own groups are in it as turns and classes, as in
 * `groups=0-0123456789,2-0123456789`.
 */
import { anglePicture, colour, drawCurves, drawGamma, drawLit, element, makeStar, moveStar, paint, tag } from "./charts.js";
import { numbered } from "./engine.js";
import { OFFICES, SCENES, groupsOf, groupsText, makeClients, trueGroups, unpacked } from "./scenes.js";

/** To which round Play goes, and then as many again; and milliseconds for each round, so that the eye can follow */
const length = () => (run.setting.epochs ? { rounds: 12, pace: 900 } : { rounds: 40, pace: 300 });
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const packed = unpacked(JSON.parse(element("digits").textContent));

// --- The worker, from the scripts of this page, so that it works from the disk, too ---------------

const source = ["engine", "worker"].map((id) => element(id).textContent).join("\n");
const worker = new Worker(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
/** @type {Map<number, {done: (answer: any) => void, heard?: (progress: any) => void}>} */
const waiting = new Map();
let asked = 0;
worker.onmessage = (/** @type {MessageEvent} */ { data: { id, progress, answer } }) => {
  if (progress !== undefined) return waiting.get(id)?.heard?.(progress);
  waiting.get(id)?.done(answer);
  waiting.delete(id);
};

/**
 * Ask the worker. A long answer tells how far it is, and is null if something else was asked before it came.
 * @param {string} kind @param {any} [value] @param {(progress: any) => void} [heard] @returns {Promise<any>}
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
 * @typedef {{setting: import("./scenes.js").Setting, clients: Office[], truth: number[],
 *   rounds: import("./worker.js").Round[], hand: import("./worker.js").Hand | null,
 *   score: import("./worker.js").Score | null, ends: number[], scoring: boolean,
 *   shown: number, pending: Promise<import("./worker.js").Round | null> | null, splitting: boolean}} Run  `shown` counts from 1, and is
 *   0 before the first round; `pending` is the round that the worker computes now; `ends` is what is known of the score
 * @typedef {import("./scenes.js").SceneClient & {name: string, digit: Float64Array}} Office  with a digit to show
 */
/** @type {Run} */
let run;
let plays = 0, playing = 0; // how often the reader began to play, and which of these goes on, or 0
let groups = SCENES.four.groups, seed = 1;
/** @type {number[]} The clients at which the reader points, at most two */
let lit = [];
/** @type {number[]} Those that were pressed, which stay lit */
let pinned = [];

/** The round that is shown. @returns {import("./worker.js").Round | undefined} */
const now = () => run.rounds[run.shown - 1];

/** Begin again, with one round, so that there is something to see. @returns {Promise<boolean>} whether no other run has begun */
async function restart() {
  const number = (/** @type {string} */ id) => Number(element(id).value);
  setPlaying(false);
  element("notice").textContent = "";
  const setting = { groups, clients: number("clients"), images: number("images"), epochs: number("epochs"), seed, rule: element("rule").value };
  const made = makeClients(packed, setting), truth = trueGroups(made, groups);
  const clients = made.map((client, i) => ({ ...client, name: OFFICES[i], digit: digitOf(client, i) }));
  /** @type {Run} */
  const mine = { setting, clients, truth, rounds: [], hand: null, score: null, ends: [], scoring: false, shown: 0, pending: null, splitting: false };
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
  const before = mine.shown ? now()?.points : mine.clients.map(() => [0, 0]);
  mine.rounds.push(round);
  if (mine.hand && round.hand !== null) mine.hand.accuracies.push(round.hand);
  show(mine.rounds.length, before);
  settle(mine);
  return round;
}

/** Find out, when the first rounds are over, what a split in each of them would have given. @param {Run} mine */
async function settle(mine) {
  if (run !== mine || mine.scoring || mine.score || mine.splitting || mine.rounds.length < length().rounds) return;
  mine.scoring = true;
  const told = (/** @type {number[]} */ ends) => { if (run === mine) { mine.ends = ends; drawCharts(); } };
  const score = await ask("score", length().rounds, told);
  mine.scoring = false;
  if (run !== mine) return;
  if (!score) return settle(mine);
  mine.score = score;
  told(score.ends);
  tell();
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
  settle(mine);
}

/** @param {boolean} on */
function setPlaying(on) {
  playing = on ? ++plays : 0;
  element("play").textContent = on ? "Pause" : "Play";
  element("state").ariaLive = on ? "off" : "polite"; // nobody can listen as fast as it plays
}

/** Play until the server splits and then until the axis is full, or without a pause until another round. @param {number} [until] */
async function play(until) {
  const mine = run, last = until ?? Math.ceil((mine.rounds.length + 1) / length().rounds) * length().rounds;
  setPlaying(true);
  const own = playing;
  while (own === playing && mine.rounds.length < last) {
    const began = performance.now(), round = await step();
    if (!round || (until === undefined && round.fired)) break;
    await new Promise((resolve) => setTimeout(resolve, Math.max(0, length().pace - (performance.now() - began))));
  }
  if (own === playing) setPlaying(false);
}

// --- What is seen ---------------------------------------------------------------------------------

/** An image that shows how an office's images are: a 7, or else one of its own classes. @param {import("./scenes.js").SceneClient} client @param {number} i */
function digitOf({ train, group }, i) {
  const { classes } = groups[group], wanted = classes.length === 10 ? 7 : classes[i % classes.length];
  const at = Math.max(0, [...Array.from(train.labels)].indexOf(wanted));
  return train.inputs.slice(64 * at, 64 * at + 64);
}

/** The clusters that are known in a round: the server's, or else those of the split by hand. @param {import("./worker.js").Round} round */
function foundIn({ labels, round }) {
  return labels ?? (run.hand && run.hand.from <= round ? run.hand.labels : null);
}

/** Show a round; the arrows come from where they were. @param {number} round @param {number[][]} [before] */
function show(round, before) {
  const mine = run, { clients, rounds, setting } = mine;
  if (!rounds[round - 1]) return;
  const { points, gamma, labels, fired, two } = rounds[round - 1];
  mine.shown = round;
  const found = foundIn(rounds[round - 1]), began = performance.now(), time = before && !calm.matches ? length().pace / 2 : 0;
  const frame = () => {
    if (run !== mine || mine.shown !== round) return;
    const share = time ? Math.min(1, (performance.now() - began) / time) : 1, eased = share * share * (3 - 2 * share);
    moveStar(points.map((point, i) => point.map((value, axis) => value * eased + (before?.[i][axis] ?? 0) * (1 - eased))), found, share < 1 ? 6 : 40);
    if (share < 1) requestAnimationFrame(frame);
  };
  frame();
  const matrices = /** @type {HTMLElement[]} */ ([...document.querySelectorAll(".matrix")]);
  if (two) matrices.forEach((matrix, half) => drawGamma(matrix, two.gammas[half], round > half ? two.found[half] : null));
  else drawGamma(matrices[0], gamma, found);
  drawCharts();
  light();
  const kept = labels && !fired && clustering(labels).count > 1;
  element("which").textContent = setting.rule === "halves" ? "the sum of all that an office has sent" : kept ? "of the one model, had it been kept" : "where each office pulls the one model";
  clients.forEach((_, i) => element(`client-${i}`).style.setProperty("--own", found ? colour(found[i]) : "var(--line)"));
  if (two) {
    element("lamp").classList.toggle("on", two.alike);
    element("agreement").textContent = round < 2 ? "The even rounds have not begun." : agreement(two);
  }
  tell();
}

/** Say whether the two halves find the same. @param {import("./worker.js").Two} two */
function agreement({ found, alike }) {
  const [odd, even] = found.map((labels) => clustering(labels).many);
  if (alike) return `Both halves find the same ${odd}.`;
  if (odd !== even) return `The odd rounds show ${odd}, the even rounds ${even}.`;
  return odd === "one cluster" ? "Both halves show one cluster: nothing to split." : `Both halves show ${odd}, but not the same ones.`;
}

const percent = (/** @type {number} */ value) => `${Math.round(100 * value)} %`;

function drawCharts() {
  const { rounds, hand, shown, setting, ends, score } = run, axis = Math.max(length().rounds, rounds.length), halves = setting.rule === "halves";
  const heat = rounds.map((round) => round.temperature), rise = rounds.find((_, t) => t && heat[t] > heat[t - 1]);
  const low = Math.floor(10 * Math.min(...heat) - 0.3) / 10, high = Math.ceil(10 * Math.max(...heat) + 0.3) / 10;
  const fired = rounds.find((round) => round.fired);
  /** @type {import("./charts.js").Ring[]} */
  const rings = rise ? [{ round: rise.round, value: rise.temperature, words: "first rise", look: halves ? "quiet" : "accent" }] : [];
  if (hand && hand.from !== rise?.round && hand.from <= rounds.length) rings.push({ round: hand.from, value: heat[hand.from - 1], words: "you", look: "hand" });
  const after = heat.map((value, t) => (rise && t >= rise.round - 1 ? value : null));
  const curves = rise && !halves
    ? [{ values: heat.slice(0, rise.round), look: "main" }, { name: "", values: after, look: "one" }]
    : [{ name: "", values: heat, look: "main" }];
  const two = (/** @type {number} */ value) => value.toFixed(2);
  drawCurves(element("temperature"), "Temperature", curves, axis, [Math.max(0, low), high], two, { shown, rings });
  /** @param {"one" | "alone" | "groups"} name */
  const values = (name) => rounds.map((round) => round[name]);
  const yours = hand ? rounds.map((_, t) => hand?.accuracies[t + 1 - hand.from] ?? null) : [];
  drawCurves(element("accuracy"), "Accuracy", [
    { name: "one model", values: values("one"), look: "one" },
    { name: "alone", values: values("alone"), look: "alone" },
    ...(fired?.labels && clustering(fired.labels).count > 1 ? [{ name: "clusters", values: values("groups").map((v, t) => (t + 1 < fired.round ? null : v)), look: "main" }] : []),
    ...(hand ? [{ name: "your split", values: yours, look: "hand" }] : []),
  ], axis, [0, 1], percent, { shown, rings: fired && halves ? [{ round: fired.round, value: fired.groups, words: "lamp", look: "accent" }] : [] });
  element("score-of").textContent = `accuracy in round ${length().rounds}`;
  const least = Math.floor(10 * Math.min(0.5, ...ends)) / 10;
  drawCurves(element("score"), "When to split", [{ values: ends, look: "main" }], length().rounds, [least, 1], percent, { shown, rings: score ? results(score) : [] });
  if (!ends.length) element("score").insertAdjacentHTML("beforeend", tag("text", { x: 185, y: 38, class: "tick middle" }, `You will see after round ${length().rounds}`));
}

/** The rings of the score: you, the server's rule, and the best round. @param {import("./worker.js").Score} score @returns {import("./charts.js").Ring[]} */
function results({ ends }) {
  const fired = run.rounds.find((round) => round.fired)?.round, best = ends.indexOf(Math.max(...ends)) + 1, you = run.hand?.from;
  /** @type {Map<number, string[]>} */
  const named = new Map();
  for (const [who, round] of /** @type {[string, number | undefined][]} */ ([["you", you], [ruleName(), fired], ["best", best]])) {
    if (round && round <= ends.length) named.set(round, [...(named.get(round) ?? []), who]);
  }
  return [...named].map(([round, who]) => ({ round, value: ends[round - 1], words: `${who.join(", ")} ${Math.round(100 * ends[round - 1])}`, look: who.includes("you") ? "hand" : "accent" }));
}

/** How the server's rule is called. */
const ruleName = () => (run.setting.rule === "halves" ? "lamp" : "OCFL");

/** Draw what a run has from its beginning: the offices and their digits, arrows of length 0, and empty matrices. */
function drawClients() {
  const { clients, truth, setting } = run, halves = setting.rule === "halves", regions = groups.some(({ classes }) => classes.length < 10);
  [lit, pinned] = [[], []];
  const named = (/** @type {number} */ g) => (regions ? `Region ${"ABCD"[g]}` : groups.length > 1 ? `Scanner ${"ABCD"[g]}` : "All scanners");
  element("groups").innerHTML = groups.map((group, g) => {
    const cards = clients.flatMap((client, i) => (client.group !== g ? [] :
      `<button class="card" id="client-${i}" data-client="${i}" tabindex="${i ? -1 : 0}" aria-label="${client.name}"><canvas aria-hidden="true"></canvas>${client.name}</button>`));
    const chips = regions
      ? `<span class="chips">${group.classes.map((c) => `<button class="chip" draggable="true" data-class="${c}" data-group="${g}" aria-label="Digit ${c}: move to the next region">${c}</button>`).join("")}</span>` : "";
    return `<div class="group" data-group="${g}"><div class="head"><span>${named(g)}</span><button class="turn" data-turn="${g}" aria-label="Turn this scanner, now at ${90 * group.turns} degrees">↺ ${90 * group.turns}°</button>${chips}</div>
      <div class="cards">${cards.join("")}</div></div>`;
  }).join("");
  drawDigits();
  makeStar(clients);
  const titles = halves ? ["Odd rounds", "Even rounds"] : [""];
  element("distances").innerHTML = halves ? "Distances <small>of the sums of</small>" : "Distances Γ <small>of each pair of updates</small>";
  document.querySelectorAll(".matrices")[0].innerHTML = titles.map((title) => `<div>${title && `<h3>${title}</h3>`}<div class="matrix"><canvas height="1"></canvas><canvas width="1"></canvas>
    <div class="cells"><canvas role="img" aria-label="The matrix of cosine distances ${title}"></canvas><svg preserveAspectRatio="none" aria-hidden="true"></svg></div></div></div>`).join("");
  element("lamp").hidden = !halves;
  document.querySelectorAll(".panels")[0].classList.toggle("wide", halves);
  element("heat").textContent = halves ? "of this round alone, as OCFL has it" : "all distances in one number";
  element("unseen").textContent = "whose images the server never sees. ↺ turns the scanners" + (regions ? "; drag or press a digit to move it." : ".");
  const kinds = new Set(truth).size, number = { 8: "Eight", 12: "Twelve", 20: "Twenty", 32: "Thirty-two" }[clients.length];
  const many = ["", "", "two", "three", "four"][kinds];
  const differ = kinds < 2 ? "Their images are all of one kind, which the server does not know."
    : regions ? `They lie in ${many} regions with different postcodes, which the server does not know.` : `Their scanners are turned by ${many} angles, which the server does not know.`;
  const question = setting.epochs ? "What does the server see?" : "When should the server split?";
  element("question").textContent = question;
  element("story").innerHTML = `${number} post offices train one model to read the digits on letters. Letters are secret, and stay where they are. All that an office sends is its <b>update</b>, an arrow below: how it would change the model. ${differ}`;
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

/** Light up the arrows, rows, columns and cards of the clients at which the reader points. */
function light() {
  const { clients } = run, round = now();
  for (const part of document.querySelectorAll("[data-client]")) part.classList.toggle("lit", lit.includes(Number(/** @type {HTMLElement} */ (part).dataset.client)));
  element("star").classList.toggle("dimmed", lit.length > 0);
  for (const over of document.querySelectorAll(".cells svg")) drawLit(over, clients.length, lit);
  element("pair").innerHTML = round ? pairWords(round) : "";
}

/** Say how far apart two clients pull. @param {import("./worker.js").Round} round */
function pairWords({ gamma, ...round }) {
  const { clients } = run, [i, j] = lit;
  if (j === undefined) {
    return `<p class="muted">${i === undefined ? "Press an office, and then another one: how far apart do they pull?" : `<b>${clients[i].name}</b>: its arrow, its row and its column. Now another office?`}</p>`;
  }
  const found = foundIn({ gamma, ...round }), angle = (Math.acos(1 - gamma[i][j]) * 180) / Math.PI;
  return anglePicture(gamma[i][j], lit.map((client) => colour(found?.[client])), lit.map((client) => clients[client].digit)) +
    `<p><b>${clients[i].name}</b> and <b>${clients[j].name}</b> pull ${Math.round(angle)}° apart, and the distance is 1 − cos ${angle.toFixed(1)}° ≈ ${gamma[i][j].toFixed(2)}.${run.setting.rule === "halves" ? "" : " That is one cell."}</p>`;
}

// --- The sentence ---------------------------------------------------------------------------------

/** @param {number[]} labels */
function clustering(labels) {
  const { truth } = run, count = Math.max(...labels) + 1, right = `${numbered(labels)}` === `${numbered(truth)}`;
  const many = ["one cluster", "two clusters", "three clusters", "four clusters", "five clusters", "six clusters"][count - 1];
  const verdict = right
    ? count > 1 ? "exactly the true groups" : "and there is indeed one kind of office"
    : count > 1 ? new Set(truth).size > 1 ? "not quite the true groups" : "though all offices are alike" : "though the offices come in groups";
  return { count, many, words: `${many}, ${verdict}` };
}

/** Say what the round that is shown means. */
function tell() {
  const { rounds, shown, splitting } = run;
  element("state").innerHTML = sentence();
  element("split").disabled = !rounds.length;
  element("step").disabled = element("play").disabled = !rounds.length || splitting;
  element("split").textContent = splitting ? "Stop" : "Split";
  const review = element("review");
  [review.max, review.value, review.disabled] = [Math.max(1, rounds.length), shown, rounds.length < 2 || splitting];
  element("reviewed").textContent = `${shown} of ${rounds.length}`;
}

function sentence() {
  const { rounds, hand, shown, score, setting } = run, now = rounds[shown - 1], before = rounds[shown - 2];
  if (!now) return "The offices train for the first round …";
  const halves = setting.rule === "halves", rule = halves ? "The lamp" : "OCFL", start = `<b>Round ${now.round}.</b> `;
  const trigger = rounds.find((round) => round.fired);
  const own = hand?.accuracies[now.round - hand.from], split = hand && own !== undefined && hand.from < now.round;
  if (score && now.round === score.ends.length) return start + verdict(score);
  if (hand?.from === now.round && !now.fired) {
    const same = trigger?.labels && `${trigger.labels}` === `${hand.labels}`;
    return `${start}You split here, and HDBSCAN finds <b>${clustering(hand.labels).words}</b>. ` +
      (score ? verdict(score) : trigger ? `${rule} split in round ${trigger.round}, ${same ? "into the same clusters" : "into other clusters"}.` : `${rule} still waits. Play on, and compare.`);
  }
  if (!before) {
    return start + (setting.epochs ? "Every office has trained the same model on its own images. Which arrows belong together? " : `Every office has taken a single step, after ${Math.min(16, setting.images)} images, so that its arrow is mostly chance. `) +
      (halves ? "The server adds up what it gets from each. " : "") + "Press <b>Play</b>, and <b>Split</b> when you would.";
  }
  const heat = `<b>${now.temperature.toFixed(3)}</b>`, from = before.temperature.toFixed(3);
  if (now.fired) {
    const { count, words } = clustering(/** @type {number[]} */ (now.labels)), soon = `${rounds[0].seen}` === `${now.labels}`;
    return start + (halves ? "Both halves find the same clusters for the second round running, and the server splits. The sum shows " : `The temperature <b>rises</b> for the first time, from ${from} to ${heat}, and OCFL splits. HDBSCAN finds `) + `<b>${words}</b>.` +
      (hand?.from === now.round ? " You split in the same round." : split ? ` You split in round ${hand.from}.` : "") +
      (count === 1 ? " One model stays: a rise says when to look, and not that there is something to find." : soon ? " Round 1 would have done: its updates give the same clusters." : "") +
      (rounds.length === now.round && now.round < length().rounds ? " Press Play to go on." : "");
  }
  if (now.labels) {
    const ways = clustering(now.labels).count > 1 ? `the models of the clusters read ${percent(now.groups)}, ` : "";
    return `${start}Of their own test images, ${ways}offices alone ${ways ? "" : "read "}${percent(now.alone)}, and one model for all ${percent(now.one)}.` +
      (split && ways ? ` Those of your split in round ${hand.from} read ${percent(own)}.` : "");
  }
  const wait = split ? ` Your clusters have trained since round ${hand.from}, and read ${percent(own)} where one model reads ${percent(now.one)}.` : "";
  if (now.two) return `${start}This round alone shows ${clustering(now.two.single).many}. ${agreement(now.two)} ${now.two.alike ? "Once more, and the server splits." : "The server waits."}${wait}`;
  return `${start}The temperature falls from ${from} to ${heat}: the updates come closer together, and OCFL waits.${wait}`;
}

/** Compare the rounds of the split at the end. @param {import("./worker.js").Score} score */
function verdict({ ends, rise }) {
  const { hand, rounds, setting } = run, trigger = rounds.find((round) => round.fired), halves = setting.rule === "halves";
  const points = (/** @type {number} */ value) => `<b>${Math.round(100 * value)}</b>`, best = Math.max(...ends), rounded = ends.map((end) => Math.round(100 * end));
  const at = (/** @type {number} */ round) => `${points(ends[round - 1])} (split in round ${round})`;
  const parts = [
    hand && hand.from <= ends.length ? `you ${at(hand.from)}` : "",
    trigger && trigger.round <= ends.length ? `${halves ? "the lamp" : "OCFL"} ${at(trigger.round)}` : `${halves ? "the lamp, which stayed dark, " : "OCFL, which never split, "}${points(rounds[ends.length - 1].groups)}`,
    halves && rise ? `OCFL ${points(rise.end)} (round ${rise.round})` : "",
    `best ${at(ends.indexOf(best) + 1)}`,
  ];
  const gain = Math.max(...rounded) - rounded[0];
  const told = new Set(run.truth).size < 2 ? "There was nothing to find." : gain < 2 ? "Waiting brought nothing here: <b>round 1 would do</b>."
    : gain < 6 ? `A split in round 1 gives ${points(ends[0])}: waiting brings little here.` : `A split in round 1 gives only ${points(ends[0])}: <b>waiting pays here</b>.`;
  return `Digits read correctly, in %: ${parts.filter(Boolean).join(", ")}. ${told}`;
}

// --- What can be pressed --------------------------------------------------------------------------

const CHOICES = ["scene", "clients", "images", "epochs", "rule"];
const OWN = "own"; // the scene's name when the reader has changed the groups

/** Choose what a list of settings names. @param {URLSearchParams} named @returns {string[]} what the page does not offer */
function choose(named) {
  const written = [...named].filter(([name, value]) => {
    if (name === "play") return /^\d*$/.test(value);
    if (name === "seed") return /^\d{1,9}$/.test(value);
    if (name === "groups") return groupsOf(value) !== null;
    return CHOICES.includes(name) && [...element(name).options].some((option) => option.value === value);
  });
  const wanted = new Map(written), scene = wanted.get("scene");
  if (scene) chooseScene(scene);
  for (const [name, value] of written) if (CHOICES.includes(name)) element(name).value = value;
  const own = wanted.get("groups");
  groups = (own && groupsOf(own)) || groups;
  seed = Number(wanted.get("seed") ?? seed);
  nameScene();
  return [...named].filter(([name]) => !wanted.has(name)).map(([name, value]) => `${name}=${value}`);
}

/** Choose a scene, with what belongs to it. @param {string} name */
function chooseScene(name) {
  const { groups: chosen, epochs, rule = "rise" } = SCENES[name] ?? { groups };
  groups = chosen;
  element("rule").value = rule;
  element("epochs").value = epochs ?? (element("epochs").value === "0" ? "5" : element("epochs").value);
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
  const unknown = choose(named), wanted = named.get("play"), begun = restart();
  const until = /^\d*$/.test(wanted ?? "no") ? Number(wanted) || 12 : 0;
  element("notice").textContent = unknown.length ? `The address asks for ${unknown.join(", ")}, which this page does not offer. The rest is as the address says.` : "";
  if ((await begun) && until) play(until);
}

element("scene").innerHTML = Object.entries(SCENES).map(([key, { name }]) => `<option value="${key}">${name}</option>`).join("") + `<option value="${OWN}" hidden>Your own groups</option>`;
for (const id of CHOICES) {
  element(id).onchange = () => {
    if (id === "scene") chooseScene(element(id).value);
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
/** The clients under a pointer: of an arrow or a card, or of a cell. @param {any} event @returns {number[]} */
function under({ target, offsetX, offsetY }) {
  const own = target.closest?.("[data-client]");
  if (own) return [Number(own.dataset.client)];
  if (!target.closest?.(".cells")) return [];
  const { width, height } = target.getBoundingClientRect(), m = run.clients.length;
  const cell = [Math.floor((offsetY / height) * m), Math.floor((offsetX / width) * m)];
  return cell.some((client) => client < 0 || client >= m) ? [] : [...new Set(cell)];
}

/** Light up what is pointed at, with the client that was pressed; or else what was pressed. @param {number[]} clients */
function pointAt(clients) {
  const one = clients.length === 1 && !pinned.includes(clients[0]);
  const wanted = one ? [...pinned.slice(0, 1), ...clients] : clients.length > 1 ? clients : pinned;
  if (`${wanted}` === `${lit}`) return;
  lit = wanted;
  light();
}

/** Keep a client lit, beside one other, or let it go. @param {number} client */
function press(client) {
  pinned = pinned.includes(client) ? pinned.filter((other) => other !== client) : [...pinned.slice(0, 1), client];
  pointAt([]);
}

document.addEventListener("pointermove", (event) => { if (event.pointerType !== "touch") pointAt(under(event)); });
document.addEventListener("pointerdown", (event) => {
  const clients = under(event);
  if (clients.length === 1) return press(clients[0]);
  if (clients.length > 1) pinned = clients;
  else if (/** @type {Element} */ (event.target).closest("#star")) pinned = [];
  pointAt([]);
});
element("groups").onfocusin = (/** @type {any} */ { target }) => { if (target.matches(":focus-visible")) pointAt(under({ target })); };
element("groups").onfocusout = () => pointAt([]);
element("groups").onkeydown = (/** @type {KeyboardEvent} */ event) => {
  const card = /** @type {HTMLElement} */ (event.target), move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const next = move && card.dataset.client && document.getElementById(`client-${Number(card.dataset.client) + move}`);
  if (!next) return;
  [card.tabIndex, next.tabIndex] = [-1, 0];
  next.focus();
  pointAt(under({ target: next }));
};

/** Give a class to another group; no group loses its last one. @param {number} label @param {number} from @param {number} to */
function moveClass(label, from, to) {
  if (from === to || groups[from].classes.length < 2) return;
  groups = groups.map((group, g) => ({
    ...group,
    classes: g === from ? group.classes.filter((c) => c !== label) : g === to ? [...new Set([...group.classes, label])].sort() : group.classes,
  }));
  nameScene();
  restart();
  element("groups").querySelector(`[data-class="${label}"]`)?.focus();
}

element("groups").onclick = (/** @type {any} */ event) => {
  const { target } = event;
  const { turn, class: label, group } = target.dataset;
  if (event.detail === 0 && target.dataset.client) press(Number(target.dataset.client)); // with a key
  if (turn !== undefined) {
    groups = groups.map((own, g) => (g === Number(turn) ? { ...own, turns: (own.turns + 1) % 4 } : own));
    nameScene();
    restart();
    element("groups").querySelector(`[data-turn="${turn}"]`)?.focus();
  } else if (label !== undefined) moveClass(Number(label), Number(group), (Number(group) + 1) % groups.length);
};
element("groups").ondragstart = (/** @type {any} */ { target, dataTransfer }) => target.dataset?.class && dataTransfer.setData("text/plain", `${target.dataset.class} ${target.dataset.group}`);
element("groups").ondragover = (/** @type {DragEvent} */ event) => event.preventDefault();
element("groups").ondrop = (/** @type {any} */ event) => {
  event.preventDefault();
  const [label, from] = event.dataTransfer.getData("text/plain").split(" ").map(Number);
  const to = event.target.closest(".group")?.dataset.group;
  if (to !== undefined && groups[from]?.classes.includes(label)) moveClass(label, from, Number(to));
};

// A link to a lesson leads to its page in the book. Where this page is a file, it names the lesson's file. It is
// not followed as a link, since the frame in which JupyterLab shows this page does not allow that
document.onclick = (event) => {
  const link = /** @type {HTMLElement | null} */ (/** @type {Element} */ (event.target).closest("[data-page]"));
  if (!link) return;
  event.preventDefault();
  element("lesson-file").textContent = `notebooks/${link.dataset.page}.ipynb`;
  element("lessons").focus();
};

readAddress();
