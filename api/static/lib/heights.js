// Where rows of different heights are: offsets and the row at an offset in O(log n).

export class Heights {
  /** @param {number} guess the height of a row that was never measured */
  constructor(guess) {
    this.guess = guess;
    /** @type {Map<string|number, number>} */
    this.known = new Map();
    this.reset([]);
  }

  /** The rows there are now, by their keys; what was measured before is kept. */
  reset(keys) {
    this.keys = keys;
    const n = keys.length;
    this.size = new Float64Array(n);
    this.tree = new Float64Array(n + 1);
    for (let i = 0; i < n; i++) {
      this.size[i] = this.known.get(keys[i]) ?? this.guess;
      this.tree[i + 1] += this.size[i];
      const up = i + 1 + ((i + 1) & -(i + 1));
      if (up <= n) this.tree[up] += this.tree[i + 1];
    }
  }

  /** @returns {boolean} whether it changed */
  measure(i, height) {
    const change = height - this.size[i];
    if (!change) return false;
    this.known.set(this.keys[i], height);
    this.size[i] = height;
    for (let at = i + 1; at < this.tree.length; at += at & -at) this.tree[at] += change;
    return true;
  }

  /** The offset of row `i`; of `length`, the height of all. */
  offset(i) {
    let sum = 0;
    for (let at = i; at > 0; at -= at & -at) sum += this.tree[at];
    return sum;
  }

  get total() {
    return this.offset(this.keys.length);
  }

  /** The row that covers an offset. */
  at(offset) {
    let at = 0;
    let step = 1;
    while (step * 2 < this.tree.length) step *= 2;
    for (; step; step >>= 1) {
      if (at + step < this.tree.length && this.tree[at + step] <= offset) {
        at += step;
        offset -= this.tree[at];
      }
    }
    return Math.min(at, Math.max(0, this.keys.length - 1));
  }
}
