// What a session's sandboxes may reach.

export const EGRESS = { off: "Nothing", allow: "Package registries", open: "Any public host" };

/** What a session is made with, of what was chosen and typed. */
export function egressOf(egress, hosts) {
  const named = hosts.split(/[\s,]+/).filter(Boolean);
  return egress === "allow" && named.length ? { egress, egress_hosts: named } : { egress };
}
