// What a session's sandboxes may reach: chosen, and changed for the next turn.

import { EGRESS, egressOf } from "../lib/egress.js";
import { patchSession, toast, update } from "../state.js";
import { html, useState } from "../vendor/preact-11.2.0-htm-3.1.1.js";
import { Dialog, Trouble } from "./parts.js";

/** @param {{form: {egress: string, hosts: string}, set: (name: string) => (event: any) => void}} props */
export const EgressFields = ({ form, set }) => html`<div class="form-row">
  <label>Egress<select name="egress" value=${form.egress} onChange=${set("egress")}>${Object.entries(EGRESS).map(([value, text]) => html`
    <option value=${value}>${text}</option>`)}</select></label>
  ${form.egress === "allow" && html`<label>And these hosts<input name="hosts" placeholder="example.org, *.example.org" value=${form.hosts} onInput=${set("hosts")} /></label>`}
</div>`;

export function EgressDialog({ session }) {
  const [form, setForm] = useState({ egress: session.egress, hosts: session.egress_hosts.join(", ") });
  const [error, setError] = useState(null);
  const set = (name) => (event) => setForm({ ...form, [name]: event.target.value });
  const close = () => update({ dialog: null });
  const submit = async (event) => {
    event.preventDefault();
    const change = egressOf(form.egress, form.hosts);
    try {
      await patchSession(session.id, form.egress === "allow" ? { egress_hosts: [], ...change } : change);
      close();
      toast("It holds from the next turn on.");
    } catch (failure) {
      setError(failure);
    }
  };
  return html`<${Dialog} title="What this session may reach"><form class="form" onSubmit=${submit}>
    <${EgressFields} form=${form} set=${set} />
    <p class="meta">Public hosts only, from the next turn on. Each connection is told in the transcript.</p>
    ${error && html`<${Trouble} error=${error} />`}
    <footer><button type="button" onClick=${close}>Cancel</button><button class="primary">Save</button></footer>
  </form><//>`;
}
