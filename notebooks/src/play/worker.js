// @ts-check
/**
 * The worker: the clients and the server, which train while the page stays smooth. The page sends
 * `start`, `step` or `split`, and gets one answer for each.
 *
 * One model, clients alone and OCFL begin alike and see the same batches. The one model goes on
 * after OCFL has split, so that each round has its arrows, and a split by hand is possible in any.
 *
 * @typedef {import("./engine.js").Server} Server
 * @typedef {import("./engine.js").Vector} Vector
 * @typedef {{round: number, gamma: number[][], temperature: number, points: number[][],
 *   ocfl: number[] | null, fired: boolean, hand: number[] | null, ms: number,
 *   accuracy: {one: number, alone: number, groups: number, hand: number | null}}} Round
 */
import { accuracy, aggregate, averaged, cosineDivergence, localUpdates, setup, split, star, temperature } from "./engine.js";
import { batchOrders, initialModel, makeClients } from "./scenes.js";

const TRAINING = { batch: 16, rate: 0.05, momentum: 0.9 };

/** @param {import("./scenes.js").Digits} digits @param {import("./scenes.js").Setting} setting */
function federation(digits, setting) {
  const clients = makeClients(digits, setting), everyone = clients.map((_, i) => i);
  const together = everyone.map(() => 0), initial = initialModel(setting.seed);
  let t = 0, one = initial, alone = everyone.map(() => initial);
  let ocfl = setup(initial, clients.length);
  /** @type {Server | null} The split by hand */
  let hand = null;
  /** @type {{gamma: number[][], updates: Vector[], before: Vector} | null} */
  let last = null;
  /** @type {number[][] | undefined} */
  let points;

  const mean = (/** @type {Vector[]} */ models, /** @type {number[]} */ labels) =>
    clients.reduce((sum, client, i) => sum + accuracy(models[labels[i]], client.test), 0) / clients.length;

  /** @returns {Round} */
  function step() {
    const began = performance.now(), round = t++;
    const orders = clients.map((client, i) => batchOrders(client.train.labels.length, setting.epochs, setting.seed, i, round));
    const moved = (/** @type {Vector[]} */ models, /** @type {number[]} */ labels) =>
      localUpdates(models, labels, clients, orders, TRAINING);
    const updates = moved([one], together), gamma = cosineDivergence(updates);
    points = star(gamma, points);
    alone = averaged(alone, round ? moved(alone, everyone) : updates, everyone);
    const waited = !ocfl.clustered;
    aggregate(ocfl, waited ? updates : moved(ocfl.models, ocfl.labels));
    if (hand) hand.models = averaged(hand.models, moved(hand.models, hand.labels), hand.labels);
    last = { gamma, updates, before: one };
    one = averaged([one], updates, together)[0];
    const single = mean([one], together);
    return {
      round: t,
      gamma,
      points,
      temperature: temperature(gamma),
      ocfl: ocfl.clustered ? ocfl.labels : null,
      fired: waited && ocfl.clustered,
      hand: hand && hand.labels,
      accuracy: {
        one: single,
        alone: mean(alone, everyone),
        groups: ocfl.clustered ? mean(ocfl.models, ocfl.labels) : single,
        hand: hand && mean(hand.models, hand.labels),
      },
      ms: performance.now() - began,
    };
  }

  /** Split the one model in the last round, as OCFL would if it fired there. */
  function byHand() {
    if (!last) return null;
    hand = setup(last.before, clients.length);
    split(hand, last.gamma);
    hand.models = averaged(hand.models, last.updates, hand.labels);
    return { labels: hand.labels, accuracy: mean(hand.models, hand.labels) };
  }

  return { step, byHand };
}

/** @type {ReturnType<typeof federation>} */
let running;
/** @type {import("./scenes.js").Digits} */
let digits;
self.onmessage = ({ data: { kind, id, ...rest } }) => {
  if (rest.digits) digits = rest.digits;
  if (kind === "start") running = federation(digits, rest.setting);
  self.postMessage({ kind, id, answer: kind === "split" ? running.byHand() : running.step() });
};
