// The inbox by keyboard. Without this, its form and its links work as any do.
"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const rows = () => [...document.querySelectorAll("[data-listed]")];
  const current = () => rows().findIndex((row) => row.hasAttribute("aria-current"));
  const open = (by) => rows()[current() + by]?.querySelector("a.q").click();

  // The answer is sent; then the next question is shown, and the outcome is said.
  let sending = false;
  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (!form.matches(".answer")) return;
    event.preventDefault();
    if (sending) return;
    sending = true;
    document.dispatchEvent(new Event("leaving")); // nothing else may change the page now
    const body = new URLSearchParams(new FormData(form, event.submitter));
    const toasts = document.querySelector(".toasts");
    const say = (toast, stays) => {
      toasts.append(toast);
      if (!stays) setTimeout(() => toast.remove(), 4000);
    };
    try {
      const headers = { "HX-Request": "true" };
      const response = await fetch(form.action, { method: "POST", headers, body });
      if (!response.ok) throw new Error(response.status);
      const found = new DOMParser().parseFromString(await response.text(), "text/html");
      const refused = found.querySelector("#outcome [role=alert]");
      for (const toast of [...found.querySelectorAll("#outcome .toast")])
        say(toast, toast.hasAttribute("role"));
      if (!refused) form.remove(); // what was typed was sent
      const live = found.getElementById("live");
      Idiomorph.morph(byId("live"), live, { morphStyle: "outerHTML" });
      history.replaceState(null, "", live.dataset.live);
      byId("q-now")?.focus();
    } catch {
      const toast = document.createElement("p");
      toast.className = "toast";
      toast.textContent = "It was not answered: load the page again.";
      say(toast, true);
    }
    sending = false;
    document.dispatchEvent(new Event("moved"));
  });

  const firstField = () =>
    document.querySelector("form.answer")?.querySelector("textarea, select, input:not([type=hidden]), button")?.focus();
  const acts = {
    j: () => open(1),
    ArrowDown: () => open(1),
    k: () => open(-1),
    ArrowUp: () => open(-1),
    x: () => rows()[current()]?.querySelector("input[type=checkbox]")?.click(),
    b: () => byId("others")?.click(),
    o: () => byId("open-thread")?.click(),
    Enter: firstField,
  };
  document.addEventListener(
    "keydown",
    (event) => {
      const target = event.target;
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "Escape" && target.closest(".answer")) return byId("q-now").focus();
      if (target.closest("input:not([type=checkbox]), textarea, select, dialog")) return;
      if (event.key === "Enter" && target.closest("a, button, summary, input")) return;
      if (!acts[event.key]) return;
      event.preventDefault();
      if (sending) return event.stopPropagation();
      acts[event.key]();
    },
    true,
  );
})();
