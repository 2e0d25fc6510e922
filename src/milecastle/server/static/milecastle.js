// What pages do by themselves: refresh, copy the command, select all. They work without it.
"use strict";
(() => {
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

  // The page sends its live part whenever that has changed. A hidden tab does not listen.
  let stream = null;
  const silence = () => {
    stream?.close();
    stream = null;
  };
  const listen = () => {
    silence();
    const live = byId("live");
    if (!live || document.visibilityState !== "visible") return;
    const own = (stream = new EventSource(live.dataset.live));
    own.onopen = () => say("liveness", "Live");
    own.onerror = () => {
      const isOver = own.readyState === EventSource.CLOSED;
      say("liveness", `Not live: ${isOver ? "load the page again" : "the server does not answer"}`);
    };
    own.addEventListener("part", (event) => {
      Idiomorph.morph(byId("live"), JSON.parse(event.data), { morphStyle: "outerHTML" });
      shown();
    });
  };
  const shown = () => {
    reveal();
    document.dispatchEvent(new Event("shown"));
  };
  document.addEventListener("visibilitychange", listen);
  addEventListener("pagehide", silence);
  addEventListener("pageshow", listen);

  // Another checkpoint of a thread. While one is on its way, only the last that was asked for counts.
  let wanted = null;
  const move = (url) => {
    silence();
    wanted = url;
    const live = byId("live");
    if (!live) return location.assign(url);
    htmx.ajax("GET", url, { source: live, target: live, swap: "morph:outerHTML" });
  };
  document.addEventListener("htmx:afterRequest", (event) => {
    if (wanted === null) return;
    const asked = event.detail.pathInfo.requestPath;
    if (asked !== wanted) return void setTimeout(() => wanted && move(wanted)); // htmx is not done
    wanted = null;
    if (!event.detail.successful) return say("liveness", "Not live: load the page again");
    history.replaceState(null, "", asked);
    shown();
    listen();
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
    setTimeout(() => say("copied", ""), 2000);
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
