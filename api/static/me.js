// Whose login this is, and what it may.

import { get } from "./api.js";
import { attempt, state, update } from "./state.js";

export const refreshMe = () => attempt(async () => update({ me: await get("/me") }));

/** What takes a button away from a login that may only read, and says why; nothing for others. */
export const bar = () => (state.me?.role === "read" ? { disabled: true, title: reason() } : {});

export const reason = () => `The token "${state.me.name}" may only read. This needs one with the role "run".`;
