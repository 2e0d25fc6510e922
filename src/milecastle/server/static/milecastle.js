// What pages do by themselves: refresh, copy the command, select all. They work without it.
"use strict";
(() => {
  const EVERY = 2000;
  const byId = (id) => document.getElementById(id);
  const say = (id, text) => {
    const place = byId(id);
    if (place && place.textContent !== text) place.textContent = text;
  };

  // What a person chose or typed stays when the page is refreshed.
  const TYPED = "textarea, input:not([type=hidden], [type=checkbox])";
  Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) =>
    !["checked", "hidden", "open", "selected", "data-sent"].includes(name) &&
    !(name === "value" && node.matches(TYPED));

  Idiomorph.defaults.ignoreActiveValue = true;

  // A form that a person has begun to fill in stays as it is.
  const isChanged = (one) =>
    one.options
      ? [...one.options].some((option) => option.selected !== option.defaultSelected && option.index)
      : one.type !== "range" && "defaultValue" in one && one.value !== one.defaultValue;
  Idiomorph.defaults.callbacks.beforeNodeMorphed = (old) =>
    !(old instanceof HTMLFormElement && [...old.elements].some(isChanged));

  // A hidden tab does not ask.
  const refresh = () => {
    const live = byId("live");
    if (live && document.visibilityState === "visible") htmx.trigger(live, "refresh");
  };
  setInterval(refresh, EVERY);
  document.addEventListener("visibilitychange", refresh);

  const onLive = (name, text) =>
    document.addEventListener(name, () => say("liveness", text));
  if (byId("live")) say("liveness", "Live");
  onLive("htmx:afterSwap", "Live");
  onLive("htmx:sendError", "Not live: the server does not answer");
  onLive("htmx:responseError", "Not live: load the page again");
  document.addEventListener("htmx:afterSwap", reveal);

  // Another checkpoint of a thread. While one is on its way, only the last that was asked for counts.
  let wanted = null;
  const move = (url) => {
    wanted = url;
    const live = byId("live");
    if (!live) return location.assign(url);
    htmx.ajax("GET", url, { source: live, target: live, swap: "morph:outerHTML" });
  };
  document.addEventListener("htmx:afterRequest", (event) => {
    if (event.detail.successful) say("liveness", "Live"); // also if nothing has changed
    if (wanted === null) return;
    const asked = event.detail.pathInfo.requestPath;
    if (asked !== wanted) return void setTimeout(() => wanted && move(wanted)); // htmx is not done
    wanted = null;
    if (event.detail.successful) history.replaceState(null, "", asked);
  });
  document.addEventListener("input", (event) => {
    const slider = event.target;
    if (slider.type !== "range") return;
    move(`${new URL(slider.form.action).pathname}?at=${slider.value}`);
  });

  const copy = async () => {
    const commands = byId("commands");
    if (!commands) return;
    try {
      await navigator.clipboard.writeText(commands.textContent);
      say("copied", "Copied");
    } catch {
      getSelection().selectAllChildren(commands);
      say("copied", "Selected: copy it with the keyboard");
    }
    setTimeout(() => say("copied", ""), EVERY);
  };

  // Controls that do nothing without this script are hidden until it runs.
  function reveal() {
    for (const one of document.querySelectorAll("[data-copy], #all")) one.hidden = false;
  }
  reveal();

  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-copy]")) copy();
    const link = event.target.closest("a[data-move]");
    if (link && byId("live") && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
      event.preventDefault();
      move(link.getAttribute("href"));
    }
    if (event.target.id === "all")
      for (const one of document.querySelectorAll("input[name=thread]"))
        one.checked = event.target.checked;
  });

  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.closest("input:not([type=checkbox]), textarea, select");
    const isPlain = !event.ctrlKey && !event.metaKey && !event.altKey;
    if (event.key === "c" && isPlain && !isTyping) copy();
    const rel = { ArrowLeft: "prev", ArrowRight: "next" }[event.key];
    if (rel && isPlain && !isTyping) document.querySelector(`a[data-move][rel=${rel}]`)?.click();
  });
})();
