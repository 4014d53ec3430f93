import { foreign, unfold } from "./maths.js";
import { choice, drawn, explorer, line, slider, svg, tag, turnedSeven, words } from "./draw.js";

const ABOUT = {
  FedAvg: "Everybody gets the mean of all.",
  Local: "Everybody keeps its own model.",
  OCFL: "It is FedAvg until it clusters, and then each group has a mean of its own.",
  IFCA: "The server keeps four models, and each client picks the one that fits it best.",
  pFedGraph: "No clusters: each client has weights of its own, larger for similar updates.",
  "EMD-CFL": "Clients are joined if their images look alike to a network; here it takes half a turn for the same.",
};

/** The mixing matrix of a method, round by round. */
export function mount(element, data) {
  const { truth, client, methods } = data.mixing;
  const m = truth.length;
  const all = methods.map(({ name, rounds, accuracy }) => ({
    name, accuracy: accuracy.map((value) => value * data.unit), matrices: rounds.map((round) => unfold(round)),
  }));
  let row = client;
  const { controls, picture, say } = explorer(element, {
    question: "Whose models are in my next model?",
    answer: `Nearly all methods average the models that clients have just trained, and differ only in whose. So one round is a square:
      its row says from whom a client gets how much. Read a row, and you know the method.`,
    key: `The darker a cell, the larger the weight (measured, not assumed). Each 7 is a client, turned as its group turns its digits. Point at a row to
      read it as bars.`,
    lesson: "09_a_map_of_the_methods",
    link: "Lesson 09: how the square is measured.",
  });
  const redraw = () => again();
  const which = choice(controls, "Method", all.map(({ name }) => name), redraw);
  const round = slider(controls, { label: "Round", min: 1, max: all[0].matrices.length, step: 1, value: 1 }, redraw);
  picture.addEventListener("pointermove", (event) => {
    const over = event.target.dataset?.row;
    if (over !== undefined && Number(over) !== row) { row = Number(over); again(); }
  });
  const again = drawn(picture, (width) => {
    const { name, accuracy, matrices } = all[which.value];
    const matrix = matrices[round.value - 1];
    const share = foreign(matrix, truth);
    say(`${name}, round ${round.value}: <b>${Math.round(100 * share)} %</b> of a client’s model comes from other groups, and the mean accuracy is
      ${accuracy[round.value - 1].toFixed(2)}. ${ABOUT[name]}`);
    const wide = width >= 640;
    const cell = Math.floor(Math.min(wide ? (width * 0.5 - 24) / m : (width - 30) / m, 19));
    const size = cell * m;
    const bars = wide ? { x: size + 74, y: 26, width: width - size - 80, height: size - 0 } : { x: 26, y: size + 84, width: width - 30, height: 150 };
    return svg(width, wide ? size + 54 : size + 270, `The square of ${name} in round ${round.value}, and the row of client ${row}.`,
      square(matrix, cell, size) + read(matrix[row], bars));
  });

  function square(matrix, cell, size) {
    const [x0, y0] = [26, 26];
    const cells = matrix.flatMap((weights, i) => weights.map((weight, j) => (weight > 0.002
      ? tag("rect", { x: x0 + j * cell, y: y0 + i * cell, width: cell - 1, height: cell - 1, class: "cell", "fill-opacity": Math.sqrt(weight).toFixed(2) }) : "")));
    const signs = truth.map((group, i) => turnedSeven(x0 + (i + 0.5) * cell, 14, group) + turnedSeven(12, y0 + (i + 0.5) * cell, group));
    const borders = truth.flatMap((group, i) => (i && group !== truth[i - 1]
      ? [line(x0 + i * cell - 0.5, y0, x0 + i * cell - 0.5, y0 + size, "border"), line(x0, y0 + i * cell - 0.5, x0 + size, y0 + i * cell - 0.5, "border")] : []));
    const rows = truth.map((_, i) => tag("rect", { x: x0, y: y0 + i * cell, width: size, height: cell, class: "over", "data-row": i }));
    const chosen = tag("rect", { x: x0 - 1, y: y0 + row * cell - 1, width: size + 1, height: cell + 1, class: "chosen" });
    return tag("rect", { x: x0, y: y0, width: size, height: size, class: "sheet" }) + cells.join("") + borders.join("") + signs.join("") + chosen + rows.join("") +
      words(x0 + size, y0 + size + 20, "columns: whose trained models", "end muted");
  }
  function read(weights, { x, y, width, height }) {
    const each = width / m;
    const [top, base] = [y + 30, y + height - 4];
    const tall = (weight) => (base - top) * Math.max(0, weight);
    const bars = weights.map((weight, j) => {
      const looks = j === row ? "own" : truth[j] === truth[row] ? "kin" : "strange";
      return tag("rect", { x: x + j * each + 1, y: base - tall(weight), width: each - 2, height: tall(weight), class: `weight ${looks}` }) +
        turnedSeven(x + (j + 0.5) * each, base + 16, truth[j]);
    });
    const share = (kind) => Math.round(100 * weights.reduce((sum, weight, j) => sum + (kind(j) ? weight : 0), 0));
    const mine = (j) => truth[j] === truth[row];
    return words(x, y + 8, `Row of client ${row}: ${share(mine)} % from its own group`, "start strong") +
      [0.5, 1].map((at) => line(x, base - tall(at), x + width, base - tall(at), "axis") + words(x - 6, base - tall(at) + 4, at, "end muted")).join("") +
      line(x, base, x + width, base, "axis") + bars.join("");
  }
}
