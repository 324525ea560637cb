// Exact numbers of live pairs and of tiles in any box of a mask, without looking at every pair.
//
// A box is decided by interval arithmetic where it can be; else it is cut. Boxes of one size whose
// open comparisons have the same offsets hold the same pairs up to a shift, so each such shape is
// counted once: all of a diagonal costs as much as one box on it. Where every open comparison
// repeats, a box is counted period by period. Nothing is sampled.

const LEAF = 128;        // pairs that are simply looked at
const FEW = 16;          // pairs that are looked at before anything else
const LONGEST = 1 << 16;  // a common period of more tokens is not worth it
const REMEMBERED = 1 << 18;

export class TooLong extends Error {}

export class Counter {
  /** `holds`: a condition of formula.js. `most`: work for one question, in boxes. */
  constructor(holds, most = 4e5) {
    this.holds = holds;
    this.most = most;
    this.known = new Map();
    this.looked = 0;
  }

  /** Live pairs of [q0, q1) x [k0, k1); NaN where that takes too long. */
  pairs(q0, q1, k0, k1) {
    if ((q1 - q0) * (k1 - k0) <= FEW) return this.#looked(q0, q1, k0, k1).full;
    return this.tiles(q0, q1, k0, k1, 1, 1).full;
  }

  /**
   * Tiles of a box that starts on a tile: { full, partial, area }, area: pairs in live tiles.
   * All are NaN where that takes too long.
   */
  tiles(q0, q1, k0, k1, height, width) {
    this.left = this.most;
    try {
      return this.#tiles(q0, q1, k0, k1, height, width);
    } catch (error) {
      if (!(error instanceof TooLong)) throw error;
      return { full: NaN, partial: NaN, area: NaN };
    }
  }

  #tiles(q0, q1, k0, k1, height, width) {
    const rows = q1 - q0, columns = k1 - k0;
    if (rows <= 0 || columns <= 0) return { full: 0, partial: 0, area: 0 };
    if (--this.left < 0) throw new TooLong();
    this.looked++;
    const box = { q0, q1, k0, k1, open: [] }, key = [];
    const found = this.holds.fold(box, key);
    if (found !== null) {
      if (!found) return { full: 0, partial: 0, area: 0 };
      return { full: Math.ceil(rows / height) * Math.ceil(columns / width), partial: 0, area: rows * columns };
    }
    const name = `${rows} ${columns} ${height} ${width} ${key.join(" ")}`;
    let result = this.known.get(name);
    if (result === undefined) {
      result = this.#open(q0, q1, k0, k1, height, width, box.open);
      if (this.known.size >= REMEMBERED) this.known.clear();
      this.known.set(name, result);
    }
    return result;
  }

  #open(q0, q1, k0, k1, height, width, open) {
    const rows = q1 - q0, columns = k1 - k0;
    if (height * width > 1 && rows <= height && columns <= width) {
      const live = this.#tiles(q0, q1, k0, k1, 1, 1).full, all = live === rows * columns;
      return { full: all ? 1 : 0, partial: live && !all ? 1 : 0, area: live ? rows * columns : 0 };
    }
    if (height * width === 1 && rows * columns <= LEAF) return this.#looked(q0, q1, k0, k1);
    const down = common(open, height), right = common(open, width);
    if (down && right && (rows > down || columns > right)) {
      return this.#periodic(q0, q1, k0, k1, height, width, Math.min(down, rows), Math.min(right, columns));
    }
    const cutRows = rows > height && rows * width >= columns * height;
    if (cutRows) {
      const middle = cut(q0, q1, height);
      return added(this.#tiles(q0, middle, k0, k1, height, width), this.#tiles(middle, q1, k0, k1, height, width));
    }
    const middle = cut(k0, k1, width);
    return added(this.#tiles(q0, q1, k0, middle, height, width), this.#tiles(q0, q1, middle, k1, height, width));
  }

  #periodic(q0, q1, k0, k1, height, width, down, right) {
    const timesQ = Math.floor((q1 - q0) / down), timesK = Math.floor((k1 - k0) / right);
    const endQ = q0 + timesQ * down, endK = k0 + timesK * right;
    const total = { full: 0, partial: 0, area: 0 };
    const part = (times, ...box) => {
      if (!times) return;
      const found = this.#tiles(...box, height, width);
      for (const name in total) total[name] += times * found[name];
    };
    part(timesQ * timesK, q0, q0 + down, k0, k0 + right);
    part(timesQ, q0, q0 + down, endK, k1);
    part(timesK, endQ, q1, k0, k0 + right);
    part(1, endQ, q1, endK, k1);
    return total;
  }

  #looked(q0, q1, k0, k1) {
    let live = 0;
    this.left -= ((q1 - q0) * (k1 - k0)) / 16;
    for (let q = q0; q < q1; q++) for (let k = k0; k < k1; k++) if (this.holds.at(q, k)) live++;
    return { full: live, partial: 0, area: live };
  }
}

function added(one, other) {
  return { full: one.full + other.full, partial: one.partial + other.partial, area: one.area + other.area };
}

/** The number of tokens, whole tiles, after which all comparisons repeat; 0: none known. */
function common(open, side) {
  let period = side;
  for (const { period: own } of open) {
    let a = period, b = own;
    while (b) [a, b] = [b, a % b];
    period = own ? (period / a) * own : 0;
    if (!period || period > LONGEST) return 0;
  }
  return period;
}

/** A place strictly between both ends where whole tiles end, with as many factors 2 as there can be. */
function cut(start, end, side) {
  for (let step = 2 ** Math.floor(Math.log2((end - 1 - start) / side)) * side; step >= side; step /= 2) {
    const place = Math.floor((end - 1) / step) * step;
    if (place > start) return place;
  }
  throw new Error(`no tile ends between ${start} and ${end}`);
}
