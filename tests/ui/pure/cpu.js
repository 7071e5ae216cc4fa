/** Seconds of processor that something took; the clock also counts what others do. */
export function cpu(action) {
  const before = process.cpuUsage();
  action();
  const { user, system } = process.cpuUsage(before);
  return (user + system) / 1e6;
}
