import { foreign, unfold } from "./maths.js";
import { drawn, explorer, line, menu, path, slider, svg, tag, turnedSeven, words } from "./draw.js";

/** @type {Record<string, Record<string, string>>} */
const ABOUT = {
  "One model for all": {
    FedAvg: "Everybody gets the mean of all.",
    FedProx: "It is FedAvg, and each client is pulled back to the common model while it trains. The square does not show this.",
    SCAFFOLD: "It is FedAvg with corrected steps, so that clients drift apart less. The square does not show this.",
  },
  "A model for each cluster": {
    OCFL: "It is FedAvg until it clusters, and then each group has a mean of its own.",
    "OCFL-KM": "It is OCFL with k-means, which is told that there are four groups.",
    "OCFL-AFF": "It is OCFL with affinity propagation, which is not told how many groups there are.",
    "OCFL-MS": "It is OCFL with mean shift, which joins pairs of groups here.",
    Sattler: "It splits only when the clients’ updates nearly cancel out. In these eight rounds they never do.",
    Briggs: "It clusters once, after the first round, and cuts its tree of clients at a distance.",
    "EMD-CFL": "Clients are joined if their images look alike to a network; here that joins groups that are half a turn apart.",
    PACFL: "It compares the images’ main directions before any training, and is told a threshold. One client stays alone.",
    FedClust: "It compares the last layers after the first training, and is told a threshold.",
    FlexCFL: "It compares the main directions of the first updates, and is told that there are four groups. Clusters give each other a little.",
    Signatures: "After a round of FedAvg it compares what clients have trained, and is told that there are four groups.",
    IFCA: "The server keeps four models, and each client picks the one that fits it best.",
    FeSEM: "The server keeps four models, and a client belongs to the one that is nearest to what it has trained.",
    CFLGP: "It adds up the clients’ gradients over rounds, and clusters them again in every second round.",
    Oracle: "It is told the true groups. No server is, but nothing that only finds groups can do better than this square.",
  },
  "Several models, mixed": {
    FedEM: "Each image chooses among four models, and each client mixes them. Here all shares stay equal, so it is a slow FedAvg.",
    FedRC: "It is like FedEM, but a class that is frequent in a model counts less. Here all shares stay equal, too.",
    FedCE: "Each model is a mean over all clients, with weights from the clients’ scores for it. The weights hardly differ.",
    FedSoft: "Each client keeps a model of its own, and is only pulled towards four models while it trains. The square does not show the pull.",
  },
  "A model for each client": {
    pFedGraph: "No clusters: each client has weights of its own, larger for similar updates.",
    FedSaC: "Weights of its own for each client, larger for similar updates and for features that complete its own.",
    Ditto: "Each client keeps a model of its own, pulled towards FedAvg’s while it trains. The square does not show the pull.",
    Local: "Everybody keeps its own model.",
  },
};

/** The mixing matrix of a method, round by round. */
export function mount(element, data) {
  const { truth, client, squares, methods } = data.mixing;
  const m = truth.length;
  const unfolded = squares.map(unfold);
  /** @type {Record<string, {name: string, accuracy: number[], matrices: number[][][]}>} */
  const all = Object.fromEntries(methods.map(({ name, rounds, accuracy }) => [name, {
    name, accuracy: accuracy.map((value) => value * data.unit), matrices: rounds.map((place) => unfolded[place]),
  }]));
  const families = Object.fromEntries(Object.entries(ABOUT).map(([family, about]) => [family, Object.keys(about)]));
  const { controls, picture, say } = explorer(element, {
    question: "Whose models are in my next model?",
    answer: `Nearly all methods average the models that clients have just trained, and differ only in whose. So one round is a square:
      its row says from whom a client gets how much. Read the rows round by round, and you see what a method does.`,
    key: `The darker a cell, the larger the weight (measured, not assumed). Each 7 is a client, turned as its group turns its digits. Point at a
      row to read it as bars.`,
    lesson: "09_a_map_of_the_methods",
    link: "Lesson 09: how the square is measured, and 09b: all of these methods.",
  });
  const redraw = () => again();
  const which = menu(controls, `Method, of ${methods.length}`, families, redraw, "OCFL");
  const round = slider(controls, { label: "Round", min: 1, max: all.OCFL.matrices.length, step: 1, value: 4 }, redraw);
  const framed = slider(controls, { label: "Framed row", min: 1, max: m, step: 1, value: client + 1, show: (k) => `client ${k} of ${m}` }, redraw);
  picture.addEventListener("pointermove", (event) => {
    const over = /** @type {SVGElement} */ (event.target).dataset.row;
    if (over && over !== String(framed.value)) framed.value = Number(over);
  });
  const again = drawn(picture, (width) => {
    const { name, accuracy, matrices } = all[which.value];
    const matrix = matrices[round.value - 1];
    const share = foreign(matrix, truth);
    say(`${name}, round ${round.value}: <b>${Math.round(100 * share)} %</b> of a client’s model comes from other groups, and the mean accuracy is
      ${accuracy[round.value - 1].toFixed(2)}. ${Object.assign({}, ...Object.values(ABOUT))[name]}`);
    const wide = width >= 640;
    const cell = Math.floor(Math.min(wide ? (width * 0.5 - 26) / m : (width - 28) / m, 19));
    const size = cell * m;
    const [x, y, span] = wide ? [size + 76, 14, width - size - 84] : [28, size + 84, width - 36];
    const tall = wide ? size / 2 - 34 : 130;
    return svg(width, wide ? size + 54 : y + 2 * tall + 110, `The square of ${name} in round ${round.value}, the framed row as bars, and two curves over the rounds.`,
      square(matrix, cell, size) + bars(matrix[framed.value - 1], x, y, span, tall) + curves(all[which.value], x, y + tall + 74, span, tall - 10));
  });

  function square(matrix, cell, size) {
    const [x0, y0] = [26, 26];
    const cells = matrix.flatMap((weights, i) => weights.map((weight, j) => (weight > 0.002
      ? tag("rect", { x: x0 + j * cell, y: y0 + i * cell, width: cell - 1, height: cell - 1, class: "cell", "fill-opacity": Math.sqrt(weight).toFixed(2) }) : "")));
    const signs = truth.map((group, i) => turnedSeven(x0 + (i + 0.5) * cell, 14, group) + turnedSeven(12, y0 + (i + 0.5) * cell, group));
    const borders = truth.flatMap((group, i) => (i && group !== truth[i - 1]
      ? [line(x0 + i * cell - 0.5, y0, x0 + i * cell - 0.5, y0 + size, "border"), line(x0, y0 + i * cell - 0.5, x0 + size, y0 + i * cell - 0.5, "border")] : []));
    const rows = truth.map((_, i) => tag("rect", { x: x0, y: y0 + i * cell, width: size, height: cell, class: "over", "data-row": i + 1 }));
    const chosen = tag("rect", { x: x0 - 1, y: y0 + (framed.value - 1) * cell - 1, width: size + 1, height: cell + 1, class: "chosen" });
    return tag("rect", { x: x0, y: y0, width: size, height: size, class: "sheet" }) + cells.join("") + borders.join("") + signs.join("") + chosen + rows.join("") +
      words(x0 + size / 2, y0 + size + 20, "rows: who gets · columns: whose trained models", "middle muted");
  }
  function bars(weights, x, y, width, height) {
    const [each, base, row] = [width / m, y + 18 + height, framed.value - 1];
    const kinds = weights.map((_, j) => (j === row ? "own" : truth[j] === truth[row] ? "kin" : "strange"));
    const share = weights.reduce((sum, weight, j) => sum + (kinds[j] === "strange" ? 0 : weight), 0);
    const level = (weight) => height * Math.max(0, weight);
    const key = [["own", "its own model"], ["kin", "its group"], ["strange", "other groups"]].map(([kind, name], k) =>
      tag("rect", { x: x + width - 104, y: y + 26 + 19 * k, width: 11, height: 11, class: `weight ${kind}` }) +
      words(x + width - 88, y + 36 + 19 * k, name)).join("");
    return words(x, y, `Framed row: ${Math.round(100 * share)} % from its own group`, "start strong") +
      [0, 0.5, 1].map((at) => line(x, base - level(at), x + width, base - level(at), "axis") + words(x - 8, base - level(at) + 4, at, "end muted")).join("") +
      weights.map((weight, j) => tag("rect", { x: x + j * each + 1, y: base - level(weight), width: each - 2, height: level(weight), class: `weight ${kinds[j]}` }) +
        turnedSeven(x + (j + 0.5) * each, base + 14, truth[j])).join("") + key;
  }
  function curves({ accuracy, matrices }, x, y, width, height) {
    const shares = matrices.map((matrix) => foreign(matrix, truth));
    const [last, now] = [accuracy.length - 1, round.value - 1];
    const at = (t) => x + 8 + ((width - 16) * t) / last;
    const level = (value) => y + height * (1 - value);
    const curve = (values, looks) => path(values.map((value, t) => [at(t), level(value)]), `curve ${looks}`) +
      tag("circle", { cx: at(now), cy: level(values[now]), r: 5, class: `dot ${looks}` });
    return [0, 0.5, 1].map((value) => line(x, level(value), x + width, level(value), "axis") + words(x - 8, level(value) + 4, value, "end muted")).join("") +
      line(at(now), y, at(now), y + height, "knife") + curve(shares, "long") + curve(accuracy, "short") +
      words(at(last), level(accuracy[last]) + 20, "accuracy", "end halo") +
      words(at(last), level(shares[last]) - 8, "from other groups", "end muted halo") +
      accuracy.map((_, t) => words(at(t), y + height + 18, t ? t + 1 : "round 1", "middle muted")).join("");
  }
}
