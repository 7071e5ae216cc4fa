// How much work something is, counted: a clock would also count what the machine does besides.

/** How often a regular expression is run. */
export function countPatternRuns(action) {
  const { exec } = RegExp.prototype;
  let count = 0;
  RegExp.prototype.exec = function counted(text) {
    count++;
    return exec.call(this, text);
  };
  try {
    action();
  } finally {
    RegExp.prototype.exec = exec;
  }
  return count;
}

/** An array, and how often one of its elements is looked at. */
export function countReads() {
  const counted = { reads: 0, array: null };
  counted.array = new Proxy([], {
    get(target, name, receiver) {
      if (/^\d+$/.test(String(name))) counted.reads++;
      return Reflect.get(target, name, receiver);
    },
  });
  return counted;
}
