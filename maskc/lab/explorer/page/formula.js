// Formulas of a mask, from the compiler's trees to functions: at a pair, over a box of pairs.
//
// A tree is an integer, true, false, one of "q", "k", "n_q", "n_kv", or a list that starts with its
// kind: ["+", constant, [factor, tree], ...], ["//", tree, divisor], ["%", tree, divisor],
// ["min", ...], ["max", ...], ["param", name], ["load", array, index, ...], [">=", tree, text] for
// tree >= 0, ["==", ...], ["!=", ...], ["in", tree, [[low, high], ...], inside, text],
// ["and", ...], ["or", ...] and ["not", tree].
//
// Numbers are doubles, which are exact below 2^53; the page draws nothing whose bound is larger.

export const MAX_NUMBER = Number.MAX_SAFE_INTEGER;

/** The largest value that a bound reaches: `values` holds a magnitude for every name. */
export function reached(bound, values) {
  if (typeof bound === "number") return bound;
  if (typeof bound === "string") return values[bound];
  const [kind, ...rest] = bound;
  switch (kind) {
    case "+": return rest.slice(1).reduce((sum, [factor, tree]) => sum + factor * reached(tree, values), rest[0]);
    case "//": return Math.floor(reached(rest[0], values) / rest[1]);
    case "%": return rest[1] - 1;
    case "min": return Math.min(...rest.map((tree) => reached(tree, values)));
    case "max": return Math.max(...rest.map((tree) => reached(tree, values)));
    case "param": case "load": return values[rest[0]];
  }
  throw new Error(`no bound ${kind}`);
}

/**
 * A condition over q and k as an object.
 *
 * at(q, k): whether it holds. fold(box, key): true or false where it holds for all or no pairs of
 * the box [q0, q1) x [k0, k1), else null; then `key` has grown by text that, with the box's size,
 * says all that its pairs depend on, and `box.open` by the comparisons that are undecided.
 *
 * `env`: n_q, n_kv, params (numbers by name), arrays (objects of `arrayOf` by name).
 */
export function condition(tree, env) {
  const names = { next: 0 };
  return conditionNode(tree, env, names);
}

function conditionNode(tree, env, names) {
  if (tree === true || tree === false) {
    return { at: () => tree, fold: () => tree };
  }
  const [kind, ...rest] = tree;
  switch (kind) {
    case "and": case "or": return joined(kind === "and", rest.map((t) => conditionNode(t, env, names)), names.next++);
    case "not": return negated(conditionNode(rest[0], env, names), names.next++);
    case "in": return member(integer(rest[0], env), rest[1], rest[2], names.next++, rest[3]);
  }
  return comparison(kind, integer(rest[0], env), names.next++, rest[1]);
}

function joined(all, parts, id) {
  const node = {
    parts, all,
    at(q, k) {
      for (const part of parts) if (part.at(q, k) !== all) return !all;
      return all;
    },
    fold(box, key) {
      const start = key.length, opened = box.open.length;
      key.push(`(${id}`);
      let found = all;
      for (const part of parts) {
        const own = part.fold(box, key);
        if (own === !all) { found = own; break; }
        if (own === null) found = null;
      }
      if (found === null) key.push(")");
      else { key.length = start; box.open.length = opened; }
      return found;
    },
  };
  return node;
}

function negated(part, id) {
  return {
    parts: [part], negates: true,
    at: (q, k) => !part.at(q, k),
    fold(box, key) {
      const found = part.fold(box, key);
      if (found === null) key.push(`!${id}`);
      return found === null ? null : !found;
    },
  };
}

function comparison(kind, left, id, text) {
  const decide = {
    ">=": (low, high) => (low >= 0 ? true : high < 0 ? false : null),
    "==": (low, high) => (low === 0 && high === 0 ? true : low > 0 || high < 0 ? false : null),
    "!=": (low, high) => (low === 0 && high === 0 ? false : low > 0 || high < 0 ? true : null),
  }[kind];
  const holds = {
    ">=": (value) => value >= 0, "==": (value) => value === 0, "!=": (value) => value !== 0,
  }[kind];
  const node = {
    text, left, kind,
    at: (q, k) => holds(left.at(q, k)),
    fold(box, key) {
      left.range(box);
      const found = decide(left.low, left.high);
      if (found === null) {
        box.open.push(node);
        key.push(id);
        key.push(left.shift(box, key));
      }
      return found;
    },
    period: left.period && left.alongQ === 0 && left.alongK === 0 ? left.period : 0,
  };
  return node;
}

function member(value, ranges, inside, id, text) {
  const find = (x) => {  // the last range that starts at or below x
    let low = 0, high = ranges.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (ranges[middle][0] <= x) low = middle + 1; else high = middle;
    }
    return low - 1;
  };
  const within = (x) => { const at = find(x); return at >= 0 && x <= ranges[at][1]; };
  const node = {
    text, left: value, kind: "in",
    at: (q, k) => within(value.at(q, k)) === inside,
    fold(box, key) {
      value.range(box);
      const first = find(value.low), last = find(value.high);
      let found = null;
      if (first === last) {
        if (first < 0 || value.low > ranges[first][1]) found = !inside;
        else if (value.high <= ranges[first][1]) found = inside;
      }
      if (found === null) {
        box.open.push(node);
        key.push(id);
        key.push(value.shift(box, key));
      }
      return found;
    },
    period: value.period && value.alongQ === 0 && value.alongK === 0 ? value.period : 0,
  };
  return node;
}

// ------------------------------------------------------------------ integers

// range(box) leaves the least and the greatest value, or bounds on them, in `low` and `high`.
// shift(box, key) gives the number that the values of two boxes of one size differ by, once `key`
// is the same. With q (or k) greater by `period`, the value grows by alongQ (or alongK); period 0:
// nobody knows.

function integer(tree, env) {
  if (typeof tree === "number") return constant(tree);
  switch (tree) {
    case "n_q": return constant(env.n_q);
    case "n_kv": return constant(env.n_kv);
    case "q": return {
      at: (q) => q, shift: (box) => box.q0, period: 1, alongQ: 1, alongK: 0,
      range(box) { this.low = box.q0; this.high = box.q1 - 1; },
    };
    case "k": return {
      at: (q, k) => k, shift: (box) => box.k0, period: 1, alongQ: 0, alongK: 1,
      range(box) { this.low = box.k0; this.high = box.k1 - 1; },
    };
  }
  const [kind, ...rest] = tree;
  switch (kind) {
    case "+": return sum(rest[0], rest.slice(1).map(([factor, part]) => [factor, integer(part, env)]));
    case "//": return quotient(integer(rest[0], env), rest[1]);
    case "%": return remainder(integer(rest[0], env), rest[1]);
    case "min": case "max": return extreme(kind === "min" ? Math.min : Math.max, rest.map((part) => integer(part, env)));
    case "param": return constant(env.params[rest[0]]);
    case "load": return load(rest[0], env.arrays[rest[0]], rest.slice(1).map((part) => integer(part, env)));
  }
  throw new Error(`no formula ${kind}`);
}

function constant(value) {
  return {
    at: () => value, range() {}, low: value, high: value, shift: () => value,
    period: 1, alongQ: 0, alongK: 0,
  };
}

const gcd = (a, b) => { while (b) [a, b] = [b, a % b]; return Math.abs(a); };
const PERIOD = 4096;  // longer ones are not worth a table
const lcm = (a, b) => { const found = a && b ? (a / gcd(a, b)) * b : 0; return found <= PERIOD ? found : 0; };

function sum(start, terms) {
  const period = terms.reduce((p, [, part]) => lcm(p, part.period), 1);
  const along = (name) => terms.reduce((s, [factor, part]) => s + (period ? factor * part[name] * (period / part.period) : 0), 0);
  return {
    at(q, k) {
      let value = start;
      for (let i = 0; i < terms.length; i++) value += terms[i][0] * terms[i][1].at(q, k);
      return value;
    },
    range(box) {
      let low = start, high = start;
      for (const [factor, part] of terms) {
        part.range(box);
        low += factor * (factor > 0 ? part.low : part.high);
        high += factor * (factor > 0 ? part.high : part.low);
      }
      this.low = low; this.high = high;
    },
    shift(box, key) {
      let value = start;
      for (const [factor, part] of terms) value += factor * part.shift(box, key);
      return value;
    },
    period, alongQ: along("alongQ"), alongK: along("alongK"),
  };
}

function repeats(part, divisor) {
  const times = divisor / gcd(divisor, gcd(part.alongQ, part.alongK));
  const period = part.period && part.period * times <= PERIOD ? part.period * times : 0;
  return { times, period };
}

function quotient(part, divisor) {
  const { times, period } = repeats(part, divisor);
  return {
    at: (q, k) => Math.floor(part.at(q, k) / divisor),
    range(box) {
      part.range(box);
      this.low = Math.floor(part.low / divisor);
      this.high = Math.floor(part.high / divisor);
    },
    shift(box, key) {
      const value = part.shift(box, key), whole = Math.floor(value / divisor);
      key.push(value - whole * divisor);
      return whole;
    },
    period, alongQ: (part.alongQ * times) / divisor, alongK: (part.alongK * times) / divisor,
  };
}

function remainder(part, divisor) {
  const modulo = (value) => value - divisor * Math.floor(value / divisor);
  return {
    at: (q, k) => modulo(part.at(q, k)),
    range(box) {
      part.range(box);
      const block = Math.floor(part.low / divisor);
      const within = block === Math.floor(part.high / divisor);
      this.low = within ? part.low - block * divisor : 0;
      this.high = within ? part.high - block * divisor : divisor - 1;
    },
    shift(box, key) { key.push(modulo(part.shift(box, key))); return 0; },
    period: repeats(part, divisor).period, alongQ: 0, alongK: 0,
  };
}

function extreme(pick, parts) {
  const known = parts.reduce((p, part) => lcm(p, part.period), 1);
  const flat = parts.every((part) => part.alongQ === 0 && part.alongK === 0);
  return {
    at(q, k) {
      let value = parts[0].at(q, k);
      for (let i = 1; i < parts.length; i++) value = pick(value, parts[i].at(q, k));
      return value;
    },
    range(box) {
      for (const part of parts) part.range(box);
      this.low = pick(...parts.map((part) => part.low));
      this.high = pick(...parts.map((part) => part.high));
    },
    shift(box, key) {
      // In a box, some parts never are the extreme one: these decide nothing there.
      const sure = pick(...parts.map((part) => (pick === Math.max ? part.low : part.high)));
      let first = null;
      parts.forEach((part, i) => {
        if (pick === Math.max ? part.high < sure : part.low > sure) return;
        key.push(`m${i}`);
        const value = part.shift(box, key);
        if (first === null) first = value;
        else key.push(value - first);
      });
      return first;
    },
    period: flat ? known : 0, alongQ: 0, alongK: 0,
  };
}

function load(name, array, index) {
  const [row, column] = index.length > 1 ? index : [null, index[0]];
  return {
    at: (q, k) => array.at(row ? row.at(q, k) : 0, column.at(q, k)),
    range(box) {
      if (row) row.range(box);
      column.range(box);
      [this.low, this.high] = array.range(row ? row.low : 0, row ? row.high : 0, column.low, column.high);
    },
    shift(box, key) {
      key.push(name);
      if (row) key.push(row.shift(box, key));
      key.push(column.shift(box, key));
      return 0;
    },
    period: 0, alongQ: 0, alongK: 0,
  };
}

// ------------------------------------------------------------------ arrays

/** An array of the caller with the least and greatest of its blocks, coarser level by level. */
export function arrayOf(values, shape) {
  const columns = shape[shape.length - 1], rows = shape.length > 1 ? shape[0] : 1;
  const clamp = (x, size) => (x < 0 ? 0 : x < size ? x : size - 1);
  let levels = null;
  const build = () => {
    levels = [{ low: values, high: values, rows, columns }];
    for (let last = levels[0]; last.rows > 1 || last.columns > 1; last = levels[levels.length - 1]) {
      levels.push(halved(last));
    }
  };
  return {
    values, shape, rows, columns,
    at: (i, j) => values[clamp(i, rows) * columns + clamp(j, columns)],
    range(i0, i1, j0, j1) {
      if (!levels) build();
      [i0, i1, j0, j1] = [clamp(i0, rows), clamp(i1, rows), clamp(j0, columns), clamp(j1, columns)];
      let z = 0;
      while (Math.max((i1 >> z) - (i0 >> z), (j1 >> z) - (j0 >> z)) > 3) z++;
      const level = levels[z];
      let low = Infinity, high = -Infinity;
      for (let i = i0 >> z; i <= i1 >> z; i++) {
        for (let j = j0 >> z; j <= j1 >> z; j++) {
          const at = i * level.columns + j;
          if (level.low[at] < low) low = level.low[at];
          if (level.high[at] > high) high = level.high[at];
        }
      }
      return [low, high];
    },
    extreme() {
      let most = 0;
      for (const value of values) most = Math.max(most, Math.abs(value));
      return most;
    },
  };
}

function halved(level) {
  const rows = (level.rows + 1) >> 1, columns = (level.columns + 1) >> 1;
  const low = new Int32Array(rows * columns).fill(0x7fffffff), high = new Int32Array(rows * columns).fill(-0x80000000);
  for (let i = 0; i < level.rows; i++) {
    for (let j = 0; j < level.columns; j++) {
      const at = (i >> 1) * columns + (j >> 1), from = i * level.columns + j;
      if (level.low[from] < low[at]) low[at] = level.low[from];
      if (level.high[from] > high[at]) high[at] = level.high[from];
    }
  }
  return { low, high, rows, columns };
}
