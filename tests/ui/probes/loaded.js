() => {
  const of = (kind) => performance.getEntriesByType(kind);
  const [page] = of("navigation");
  const scripts = of("resource").filter((each) => /\.js$/.test(each.name));
  return { scripts: scripts.reduce((sum, each) => sum + each.encodedBodySize, 0), count: scripts.length,
    paint: of("paint").find((each) => each.name === "first-contentful-paint").startTime - page.responseStart };
}
