import { ari, cutAt, exact, faults, leaves, linkage, rightHeights, square } from "./maths.js";
import { colour, draggable, drawn, explorer, line, path, slider, svg, tag, turnedSeven, words } from "./draw.js";

const [TOP, HEIGHT, LEFT, RIGHT, HIGHEST] = [14, 270, 34, 62, 1.1];

/** Briggs' rule: a tree of clients, and a cut that can be dragged. */
export function mount(element, data) {
  const { truth, briggs } = data.older_rules;
  const distances = briggs.rounds.map((above) => square(above, truth.length, data.unit));
  const trees = distances.map((distance) => linkage(distance));
  const { controls, picture, say } = explorer(element, {
    question: "At what height would you cut the tree?",
    answer: `Each join of the tree is as high as two sets of clients are far apart. Briggs’ rule cuts once, and what still
      hangs together is a cluster. A whole range of heights is right, but it moves from round to round.`,
    key: `Each 7 is a client, turned as its group turns its digits. Below, each bar is a cluster. It has a colour if it is
      exactly one group.`,
    lesson: "04_sattler_and_briggs",
    link: "Lesson 04: the same tree, and Briggs’ rule in ten lines.",
  });
  const y = (height) => TOP + HEIGHT * (1 - height / HIGHEST);
  const redraw = () => again();
  const cut = slider(controls, { label: "Height of the cut", min: 0.05, max: 1.1, step: 0.01, value: briggs.cut, show: (v) => v.toFixed(2) }, redraw);
  const round = slider(controls, { label: "Cut after round", min: 1, max: trees.length, step: 1, value: 5 }, redraw);
  draggable(picture, (_, __, to) => {
    cut.value = Math.min(HIGHEST, Math.max(0.05, HIGHEST * (1 - (to - TOP) / HEIGHT)));
  });
  const again = drawn(picture, (width) => {
    const joins = trees[round.value - 1];
    const order = leaves(joins);
    const found = cutAt(joins, cut.value);
    const groups = exact(truth, found);
    const right = rightHeights(joins, truth);
    const count = Math.max(...found) + 1;
    const score = ari(truth, found);
    const { merged, splintered } = faults(truth, found);
    const verdict = merged && splintered ? "Some groups merge while others are in splinters."
      : merged ? "Too high: groups merge." : splintered ? "Too low: groups are in splinters." : "These are the four groups.";
    say(`Round ${round.value}, cut at ${cut.value.toFixed(2)}: <b>${count} cluster${count > 1 ? "s" : ""}</b>, ARI ${score.toFixed(2)}. ${verdict}`);
    const step = (width - LEFT - RIGHT) / order.length;
    const x = order.map(() => 0);
    order.forEach((client, place) => { x[client] = LEFT + step * (place + 0.5); });
    return svg(width, TOP + HEIGHT + 52, `A tree of 20 clients, cut into ${count} clusters.`, [
      scale(), band(right, width), tree(joins, x, found, groups), feet(order, x, step, found, groups), knife(width),
    ].join(""));
  });

  function scale() {
    const ticks = [0, 0.5, 1].map((at) => words(LEFT - 10, y(at) + 4, at, "end muted") + line(LEFT - 6, y(at), LEFT - 2, y(at), "axis"));
    return ticks.join("") + words(0, 0, "distance", "middle muted", { transform: `translate(10 ${y(0.75)}) rotate(-90)` });
  }
  function band(right, width) {
    if (!right) return "";
    const [low, high] = right;
    const box = { x: LEFT, y: y(high), width: width - LEFT - RIGHT, height: y(low) - y(high), class: "band" };
    return tag("rect", box) + words(LEFT + 6, y(high) + 15, "right", "start accent");
  }
  function tree(joins, places, found, groups) {
    const at = places.map((place) => [place, y(0)]);
    return joins.map(({ parts, height }) => {
      const [[x1, y1], [x2, y2]] = parts.map((part) => at[part]);
      at.push([(x1 + x2) / 2, y(height)]);
      const first = leaves(joins, parts[0])[0];
      const looks = height < cut.value ? colour(groups[first]) : "faint";
      return path([[x1, y1], [x1, y(height)], [x2, y(height)], [x2, y2]], `branch ${looks}`);
    }).reverse().join("");
  }
  function feet(order, places, step, found, groups) {
    return order.map((client, place) => {
      const [x1, looks] = [places[client], colour(groups[client])];
      const joined = place + 1 < order.length && found[order[place + 1]] === found[client];
      const from = place && found[order[place - 1]] === found[client] ? x1 - step / 2 : x1 - step / 2 + 2;
      return turnedSeven(x1, y(0) + 17, truth[client]) +
        line(from, y(0) + 37, joined ? x1 + step / 2 + 0.5 : x1 + step / 2 - 2, y(0) + 37, `found ${looks}`);
    }).join("");
  }
  function knife(width) {
    const at = y(cut.value);
    return line(LEFT, at, width - RIGHT + 8, at, "knife") + tag("circle", { cx: width - RIGHT + 14, cy: at, r: 7, class: "grip" }) +
      words(width - RIGHT + 27, at + 4, cut.value.toFixed(2), "start accent strong") +
      tag("rect", { x: LEFT, y: at - 16, width: width - LEFT, height: 32, class: "handle", "data-handle": "cut" });
  }
}
