// The inbox by keyboard. Without this, its forms work as any form does.
"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const items = () => [...document.querySelectorAll("[data-question]:not([data-sent])")];
  const current = () => document.activeElement?.closest("[data-question]");
  let place = 0; // of the question that had the focus last
  let focused = false;

  const focusAt = (index) => {
    const all = items();
    const item = all[Math.max(0, Math.min(index, all.length - 1))];
    if (!item) return;
    item.focus();
    item.scrollIntoView({ block: "nearest" });
  };
  const move = (step) => {
    const at = items().indexOf(current());
    focusAt(at < 0 ? (step > 0 ? place : place - 1) : at + step);
  };

  // Answers are sent one after the other. The focus goes to the next question at once.
  let sending = Promise.resolve();
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.matches(".answer")) return;
    event.preventDefault();
    const own = form.closest("[data-question]");
    const boxes = [...document.querySelectorAll(`input[form="${form.id}"]:checked`)];
    const answered = own ? [own] : boxes.map((box) => box.closest("[data-question]"));
    const fields = new URLSearchParams(new FormData(form, event.submitter));
    const at = items().indexOf(answered[0]);
    for (const item of answered) item.dataset.sent = "";
    for (const box of own ? [] : boxes) box.checked = false;
    if (answered.length) focusAt(at);
    sending = sending.then(() => send(form, fields, answered));
  });
  const send = async (form, body, answered) => {
    const outcome = byId("outcome");
    try {
      const headers = { "HX-Request": "true" };
      const response = await fetch(form.action, { method: "POST", headers, body });
      if (!response.ok) throw new Error(response.status);
      const found = new DOMParser().parseFromString(await response.text(), "text/html");
      outcome.replaceChildren(...found.getElementById("outcome").childNodes);
      Idiomorph.morph(byId("live"), found.getElementById("live"));
    } catch {
      outcome.textContent = "It was not answered: load the page again.";
    }
    for (const item of answered) delete item.dataset.sent; // those that are still there were refused
    refocus();
  };
  const refocus = () => {
    if (document.activeElement === document.body && focused) focusAt(place);
  };
  document.addEventListener("shown", refocus);
  document.addEventListener("focusin", () => {
    const at = items().indexOf(current());
    if (at >= 0) [place, focused] = [at, true];
  });

  const answer = (item, value) => {
    if ("sent" in item.dataset) return;
    const box = item.querySelector("input[type=checkbox][form]");
    const batch = box && document.querySelector(`input[form="${box.getAttribute("form")}"]:checked`);
    const form = batch ? byId(box.getAttribute("form")) : item.querySelector("form.answer");
    form?.querySelector(`button[name=value][value=${value}]`)?.click();
  };
  const firstField = (form) =>
    form?.querySelector("textarea, select, input:not([type=hidden]), button")?.focus();

  const onItem = {
    y: (item) => answer(item, "true"),
    n: (item) => answer(item, "false"),
    x: (item) => item.querySelector("input[type=checkbox][form]")?.click(),
    b: (item) => {
      const several = item.closest("section").querySelector(".several");
      if (several) several.open = true;
      firstField(several);
    },
    o: (item) => item.querySelector("[data-thread] a")?.click(),
  };
  const anywhere = {
    j: () => move(1),
    ArrowDown: () => move(1),
    k: () => move(-1),
    ArrowUp: () => move(-1),
    "?": () => byId("keys").showModal(),
  };

  document.addEventListener("keydown", (event) => {
    const target = event.target;
    if (event.ctrlKey || event.metaKey || event.altKey || byId("keys").open) return;
    const item = current();
    if (event.key === "Escape" && item && target !== item) return item.focus();
    if (target.closest("input:not([type=checkbox]), textarea, select")) return;
    let action = anywhere[event.key];
    if (item && onItem[event.key]) action = () => onItem[event.key](item);
    if (event.key === "Enter" && target === item)
      action = () => firstField(item.querySelector("form.answer"));
    if (!action) return;
    event.preventDefault();
    action();
  });
  byId("show-keys").hidden = false;
  byId("show-keys").addEventListener("click", () => byId("keys").showModal());
})();
