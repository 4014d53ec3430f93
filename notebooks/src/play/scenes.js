// @ts-check
/**
 * Who holds which digits: scenes, clients, and all that is drawn at random.
 *
 * A scene is a list of groups. The clients of a group turn their images by the same quarter turns,
 * and hold the same classes. The server is not told who belongs to which group.
 *
 * @typedef {{turns: number, classes: number[]}} Group
 * @typedef {{groups: Group[], clients: number, images: number, epochs: number, seed: number, rule: string}} Setting  no
 *   epochs: a single step; the rule is `rise` or `halves`
 * @typedef {{pixels: Uint8Array, labels: Uint8Array, train: number}} Digits  bytes, 64 an image
 * @typedef {import("./engine.js").Client & {group: number}} SceneClient
 */
import { CLASSES, HIDDEN, PARAMETERS, PIXELS } from "./engine.js";

const SIDE = 8;
export const BATCH = 16;
const ALL = [...Array(CLASSES).keys()];

/** What the clients are called: post offices, in the order of the alphabet */
export const OFFICES = (
  "Bath Bern Bonn Brno Cork Cuzco Delft Faro Ghent Graz Jena Kiel Kobe Lima Linz Lodz Lund Lviv Lyon Metz " +
  "Nara Nice Oslo Oulu Porto Quito Riga Rome Suva Turku Ulm York"
).split(" ");

const FOUR = [0, 1, 2, 3].map((turns) => ({ turns, classes: ALL }));

/** @type {Object<string, {name: string, groups: Group[], epochs?: string, rule?: string}>} */
export const SCENES = {
  four: { name: "Four scanners", groups: FOUR },
  two: { name: "Two scanners", groups: [0, 2].map((turns) => ({ turns, classes: ALL })) },
  classes: {
    name: "Three regions",
    groups: [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]].map((classes) => ({ turns: 0, classes })),
  },
  alike: { name: "All alike", groups: [{ turns: 0, classes: ALL }] },
  steps: { name: "One step per round", groups: FOUR, epochs: "0", rule: "halves" },
};

/** Write groups as in an address: the turns and the classes of each. @param {Group[]} groups */
export function groupsText(groups) {
  return groups.map(({ turns, classes }) => `${turns}-${[...classes].sort().join("")}`).join(",");
}

/** Read groups as an address has them. @param {string} text @returns {Group[] | null} nothing if it makes no sense */
export function groupsOf(text) {
  if (!/^[0-3]-\d{1,10}(,[0-3]-\d{1,10}){0,3}$/.test(text)) return null;
  const groups = text.split(",").map((part) => ({ turns: Number(part[0]), classes: [...part.slice(2)].map(Number) }));
  return groups.every(({ classes }) => new Set(classes).size === classes.length) ? groups : null;
}

/** @param {{train: number, levels: number[], labels: string, pixels: string}} packed @returns {Digits} */
export function unpacked({ train, levels, labels, pixels }) {
  return {
    train,
    labels: Uint8Array.from(labels, Number),
    pixels: Uint8Array.from(pixels, (letter) => levels[letter.charCodeAt(0) - 97]),
  };
}

/**
 * Return an image after some quarter turns to the left.
 * @param {ArrayLike<number>} image @param {number} turns
 */
export function quarterTurns(image, turns) {
  let turned = Array.from(image);
  for (let t = 0; t < turns; t++) {
    turned = turned.map((_, p) => turned[(p % SIDE) * SIDE + SIDE - 1 - Math.floor(p / SIDE)]);
  }
  return turned;
}

/**
 * Return a generator of numbers in [0, 1), the same for the same whole numbers (mulberry32).
 * @param {...number} key
 */
export function random(...key) {
  let state = key.reduce((hash, part) => Math.imul(hash ^ part, 0x9e3779b1) + 0x85ebca6b, 1) | 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

/** Return a copy in random order. @template T @param {T[]} items @param {() => number} next */
export function shuffled(items, next) {
  const copy = items.slice();
  for (let last = copy.length - 1; last > 0; last--) {
    const other = Math.floor(next() * (last + 1));
    [copy[last], copy[other]] = [copy[other], copy[last]];
  }
  return copy;
}

/**
 * Deal a group's images to its clients, class by class. Those who come last share what is left.
 * @param {Digits} digits @param {number[]} rows @param {Group} group
 * @param {number} members @param {number} each  images per client @param {() => number} next
 */
function dealt(digits, rows, group, members, each, next) {
  const hands = Array.from({ length: members }, () => /** @type {number[]} */ ([]));
  const offset = Math.floor(next() * group.classes.length);
  group.classes.forEach((label, k) => {
    const own = shuffled(rows.filter((row) => digits.labels[row] === label), next);
    const extra = (k + offset) % group.classes.length < each % group.classes.length ? 1 : 0;
    const count = Math.floor(each / group.classes.length) + extra;
    hands.forEach((hand, i) => {
      for (let n = 0; n < count; n++) hand.push(own[(i * count + n) % own.length]);
    });
  });
  return hands;
}

/**
 * Make the clients of a setting: group after group, each with its training and test images.
 * @param {Digits} digits @param {Setting} setting
 * @returns {SceneClient[]}
 */
export function makeClients(digits, { groups, clients, images, seed }) {
  const rows = [...digits.labels.keys()], next = random(seed, 1);
  const first = (/** @type {number} */ g) => Math.round((g * clients) / groups.length);
  return groups.flatMap((group, g) => {
    const members = first(g + 1) - first(g);
    const samples = (/** @type {number[]} */ hand) => ({
      labels: hand.map((row) => digits.labels[row]),
      inputs: Float64Array.from(
        hand.flatMap((row) => quarterTurns(digits.pixels.subarray(row * PIXELS, (row + 1) * PIXELS), group.turns)),
        (byte) => byte / 255,
      ),
    });
    const train = dealt(digits, rows.slice(0, digits.train), group, members, images, next);
    const tests = Math.floor((digits.labels.length - digits.train) / members / CLASSES) * group.classes.length;
    const test = dealt(digits, rows.slice(digits.train), group, members, Math.max(tests, 20), next);
    return train.map((hand, i) => ({ group: g, train: samples(hand), test: samples(test[i]) }));
  });
}

/** Draw the model from which all begin, as torch does. @param {number} seed */
export function initialModel(seed) {
  const next = random(seed, 2), hidden = HIDDEN * (PIXELS + 1);
  return Float64Array.from({ length: PARAMETERS }, (_, k) => (2 * next() - 1) / Math.sqrt(k < hidden ? PIXELS : HIDDEN));
}

/**
 * Draw the order of a client's images in each local epoch of a round, or one batch for a single step.
 * @param {number} images @param {number} epochs @param {number} seed @param {number} client @param {number} round
 */
export function batchOrders(images, epochs, seed, client, round) {
  const next = random(seed, 3, client, round);
  if (!epochs) return [shuffled([...Array(images).keys()], next).slice(0, BATCH)];
  return Array.from({ length: epochs }, () => shuffled([...Array(images).keys()], next));
}

/**
 * Return the true group of each client. Groups with the same turns and classes are one.
 * @param {SceneClient[]} clients @param {Group[]} groups
 */
export function trueGroups(clients, groups) {
  const kinds = groups.map((group) => JSON.stringify([group.turns, [...group.classes].sort()]));
  return clients.map((client) => kinds.indexOf(kinds[client.group]));
}
