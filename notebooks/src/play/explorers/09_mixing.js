import { foreign, unfold } from "./maths.js";
import { choice, drawn, explorer, line, path, slider, svg, tag, turnedSeven, words } from "./draw.js";

const ABOUT = {
  FedAvg: "Everybody gets the mean of all.",
  Local: "Everybody keeps its own model.",
  OCFL: "It is FedAvg until it clusters, and then each group has a mean of its own.",
  IFCA: "The server keeps four models, and each client picks the one that fits it best.",
  pFedGraph: "No clusters: each client has weights of its own, larger for similar updates.",
  "EMD-CFL": "Clients are joined if their images look alike to a network; here that joins groups that are half a turn apart.",
};

/** The mixing matrix of a method, round by round. */
export function mount(element, data) {
  const { truth, client, methods } = data.mixing;
  const m = truth.length;
  const all = methods.map(({ name, rounds, accuracy }) => ({
    name, accuracy: accuracy.map((value) => value * data.unit), matrices: rounds.map((round) => unfold(round)),
  }));
  const { controls, picture, say } = explorer(element, {
    question: "Whose models are in my next model?",
    answer: `Nearly all methods average the models that clients have just trained, and differ only in whose. So one round is a square:
      its row says from whom a client gets how much. Read the rows round by round, and you see what a method does.`,
    key: `The darker a cell, the larger the weight (measured, not assumed). Each 7 is a client, turned as its group turns its digits. Point at a
      row to read it as bars.`,
    lesson: "09_a_map_of_the_methods",
    link: "Lesson 09: how the square is measured.",
  });
  const redraw = () => again();
  const which = choice(controls, "Method", all.map(({ name }) => name), redraw, 2);
  const round = slider(controls, { label: "Round", min: 1, max: all[0].matrices.length, step: 1, value: 4 }, redraw);
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
      ${accuracy[round.value - 1].toFixed(2)}. ${ABOUT[name]}`);
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
