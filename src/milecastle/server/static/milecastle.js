// What pages do by themselves: live updates, dialogs, keys. They work without it.
"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const one = (selector, from = document) => from.querySelector(selector);
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];

  // On a narrow screen the pages are a strip that scrolls: show the one that is open.
  one(".nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

  // What a person chose, opened or typed stays when the page is refreshed.
  const TYPED = "textarea, input:not([type=hidden], [type=checkbox])";
  Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) =>
    !["checked", "hidden", "open", "selected", "data-sent"].includes(name) &&
    !(name === "value" && node.matches(TYPED));

  Idiomorph.defaults.ignoreActiveValue = true;

  // A form that a person has begun to fill in stays as it is.
  const isChanged = (field) =>
    field.options
      ? [...field.options].some((option) => option.selected !== option.defaultSelected && option.index)
      : field.type !== "range" && "defaultValue" in field && field.value !== field.defaultValue;
  Idiomorph.defaults.callbacks.beforeNodeMorphed = (old) =>
    !(old.id === "liveness" || (old instanceof HTMLFormElement && [...old.elements].some(isChanged)));

  // The page sends its live part whenever that has changed. A hidden tab does not listen.
  const liveness = (text, isLive) => {
    const place = byId("liveness");
    if (!place) return;
    if (place.textContent !== text) place.textContent = text;
    place.classList.toggle("held", !isLive);
  };
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
    own.onopen = () => liveness("Live", true);
    own.onerror = () => {
      const isOver = own.readyState === EventSource.CLOSED;
      liveness(`Not live: ${isOver ? "load the page again" : "the server does not answer"}`, false);
    };
    own.addEventListener("part", (event) => {
      const asked = byId("live").dataset.live;
      Idiomorph.morph(byId("live"), JSON.parse(event.data), { morphStyle: "outerHTML" });
      shown();
      if (byId("live").dataset.live !== asked) listen(); // it names what it shows now
    });
  };
  const shown = () => {
    reveal();
    document.dispatchEvent(new Event("shown"));
  };
  document.addEventListener("visibilitychange", listen);
  document.addEventListener("moved", listen);
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
  document.addEventListener("leaving", () => {
    silence();
    wanted = null;
  });
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.pathInfo.requestPath !== wanted) event.detail.shouldSwap = false;
  });
  document.addEventListener("htmx:afterRequest", (event) => {
    if (wanted === null) return;
    const asked = event.detail.pathInfo.requestPath;
    if (asked !== wanted) return void setTimeout(() => wanted && move(wanted)); // htmx is not done
    wanted = null;
    if (!event.detail.successful) return liveness("Not live: load the page again", false);
    history.replaceState(null, "", asked);
    shown();
    listen();
  });
  document.addEventListener("input", (event) => {
    const slider = event.target;
    if (slider.type !== "range") return;
    const query = new URLSearchParams(new FormData(slider.form));
    move(`${new URL(slider.form.action).pathname}?${query}`);
  });

  // Times are counted on while the page is open.
  const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const count = () => {
    for (const time of all("time[data-ago]")) {
      const seconds = (Date.now() - Date.parse(time.dateTime)) / 1000;
      if (seconds < 0) continue;
      const [unit, size] = UNITS.find(([, least]) => seconds >= least) ?? UNITS[3];
      const text = `${Math.floor(seconds / size)} ${unit}${time.dataset.ago}`;
      if (time.textContent !== text) time.textContent = text;
    }
  };
  setInterval(count, 5000);

  // Say something for a moment.
  const say = (text) => {
    const toast = document.createElement("p");
    toast.className = "toast";
    toast.textContent = text;
    one(".toasts").append(toast);
    setTimeout(() => toast.remove(), 4000);
  };
  const copy = async (id) => {
    const place = byId(id);
    if (!place) return;
    try {
      await navigator.clipboard.writeText(place.textContent.trim());
      say("Copied");
    } catch {
      getSelection().selectAllChildren(place);
      say("Selected: copy it with the keyboard");
    }
  };

  // Controls that do nothing without this script are hidden until it runs.
  function reveal() {
    for (const control of all("[data-copy], button[data-opens][type=button], #all")) control.hidden = false;
  }
  reveal();

  const isPlain = (event) => !event.ctrlKey && !event.metaKey && !event.altKey;
  const closeMenus = (but) => {
    for (const menu of all(".menu[open]")) if (!menu.contains(but)) menu.open = false;
  };
  document.addEventListener("click", (event) => {
    const at = event.target;
    closeMenus(at);
    const copied = at.closest("[data-copy]");
    if (copied) copy(copied.dataset.copy);
    const opener = at.closest("[data-opens]");
    const dialog = opener && byId(opener.dataset.opens);
    if (dialog?.showModal && isPlain(event)) {
      event.preventDefault();
      opener.closest(".menu")?.removeAttribute("open");
      dialog.close();
      dialog.showModal();
    }
    const link = at.closest("a[data-move]");
    if (link && byId("live") && isPlain(event) && !event.shiftKey) {
      event.preventDefault();
      move(link.getAttribute("href"));
    }
    if (at.id === "all") for (const box of all("input[name=thread]")) box.checked = at.checked;
    if (at.closest("[data-close]")) {
      event.preventDefault();
      at.closest("dialog").close();
    }
  });

  // Keys: single letters, outside of fields.
  let going = false;
  const step = (by) => {
    const rows = all("[data-row]");
    const now = rows.findIndex((row) => row.contains(document.activeElement));
    const next = rows[Math.max(0, Math.min(rows.length - 1, now + by))];
    if (!next) return;
    one("a, summary", next)?.focus();
    next.scrollIntoView({ block: "nearest" });
  };
  const row = () => document.activeElement?.closest("[data-row]");
  const ACTS = {
    "/": () => one(".find input")?.focus(),
    "?": () => byId("keys").showModal(),
    c: () => copy("command"),
    j: () => step(1),
    k: () => step(-1),
    x: () => row() && one("input[type=checkbox]", row())?.click(),
    y: () => one("[data-key=y]")?.click(),
    n: () => one("[data-key=n]")?.click(),
    ArrowLeft: () => one("a[data-move][rel=prev]")?.click(),
    ArrowRight: () => one("a[data-move][rel=next]")?.click(),
  };
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") closeMenus(null);
    const isTyping = event.target.closest("input:not([type=checkbox]), textarea, select, dialog");
    if (!isPlain(event) || isTyping || event.defaultPrevented) return;
    if (event.repeat && "yn".includes(event.key)) return; // a key that is held answers once
    const place = going && one(`.nav a[data-go=${CSS.escape(event.key)}]`);
    going = event.key === "g";
    if (place) return place.click();
    if (!ACTS[event.key]) return;
    event.preventDefault();
    ACTS[event.key]();
  });
})();
