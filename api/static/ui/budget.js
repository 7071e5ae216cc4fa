// What a session may spend on models: asked for with a new session, changed later.

import { whole } from "../lib/usage.js";
import { patchSession, state, update } from "../state.js";
import { html, useState } from "../vendor/preact-11.2.0-htm-3.1.1.js";
import { Dialog, Trouble } from "./parts.js";

/** The budget in two fields of text; null for none. */
export const budgetOf = ({ tokens, cost }) =>
  tokens || cost ? { ...(tokens ? { tokens: Number(tokens) } : {}), ...(cost ? { cost: Number(cost) } : {}) } : null;

export const BudgetFields = ({ value, set }) => html`<div class="form-row">
  <label>Budget in tokens<input name="budget-tokens" type="number" min="1" step="1" inputmode="numeric" placeholder="No limit" value=${value.tokens} onInput=${(e) => set({ ...value, tokens: e.target.value })} /></label>
  <label>Budget in dollars<input name="budget-cost" type="number" min="0.0001" step="any" inputmode="decimal" placeholder="No limit" value=${value.cost} onInput=${(e) => set({ ...value, cost: e.target.value })} /></label>
</div>`;

export function BudgetDialog({ session }) {
  const [value, set] = useState({ tokens: session.budget?.tokens ?? "", cost: session.budget?.cost ?? "" });
  const [error, setError] = useState(null);
  const now = state.session?.id === session.id ? state.session : session;
  const submit = async (event) => {
    event.preventDefault();
    try {
      await patchSession(session.id, { budget: budgetOf(value) });
      update({ dialog: null });
    } catch (failure) {
      setError(failure);
    }
  };
  return html`<${Dialog} title="Budget"><form class="form" onSubmit=${submit}>
    <p class="meta">Used so far: ${now.usage.requests ? whole(now.usage) : "nothing"}. A request beyond the budget is refused, and its turn ends. Empty fields: no limit.</p>
    <${BudgetFields} value=${value} set=${set} />
    ${error && html`<${Trouble} error=${error} />`}
    <footer><button type="button" onClick=${() => update({ dialog: null })}>Cancel</button><button class="primary">Save</button></footer></form><//>`;
}
