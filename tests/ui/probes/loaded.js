// The scripts that were fetched so far, and those that the page itself does not name: they are
// found, and fetched, only once another script has been read.
() => {
  const scripts = performance.getEntriesByType("resource").filter((each) => /\.js$/.test(each.name));
  const named = new Set([...document.querySelectorAll("link[rel=modulepreload], script[src]")].map((el) => el.href ?? el.src));
  return { count: scripts.length, bytes: scripts.reduce((sum, each) => sum + each.encodedBodySize, 0),
    late: scripts.map((each) => each.name).filter((name) => !named.has(name)) };
}
