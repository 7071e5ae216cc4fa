() => {
  const tried = {};
  try { document.body.innerHTML = "<b>x</b>"; tried.markup = true; } catch { tried.markup = false; }
  const script = document.createElement("script");
  try { script.text = "window.inline = 1"; document.head.append(script); } catch {}
  tried.inline = window.inline === 1;
  return tried;
}
