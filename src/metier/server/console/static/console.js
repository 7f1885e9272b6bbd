// Optional: all pages work without it, but then they don't refresh themselves.
(() => {
  const root = document.documentElement;
  for (const theme of document.querySelectorAll("[data-theme-switch]")) {
    theme.hidden = false;
    theme.addEventListener("click", () => {
      const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = dark ? "light" : "dark";
      localStorage.setItem("theme", root.dataset.theme);
    });
  }

  // A page without its stream must not look current: show a banner, stop animations and offer a retry.
  const offline = document.getElementById("offline");
  let connection = null;
  const showOffline = () => {
    if (!offline.hidden) return;
    document.getElementById("offline-since").textContent = new Date().toLocaleTimeString();
    offline.hidden = false;
    root.classList.add("offline");
  };
  const hideOffline = () => {
    offline.hidden = true;
    root.classList.remove("offline");
  };
  document.addEventListener("htmx:sse:error", (event) => {
    connection = event.detail.connection || connection;
    showOffline();
  });
  document.addEventListener("htmx:sse:after:connection", hideOffline);
  for (const failure of ["htmx:error", "htmx:response:error"]) {
    // htmx doesn't retry the first request of a stream.
    document.addEventListener(failure, (event) => {
      const failed = event.detail.ctx?.sourceElement;
      if (failed && failed.id === "live") showOffline();
    });
  }
  window.addEventListener("offline", showOffline);
  window.addEventListener("online", () => connection?.delayCanceller ? connection.delayCanceller() : hideOffline());
  document.getElementById("offline-retry").addEventListener("click", () => {
    // Without `delayCanceller` an attempt is under way. A reload would replace the page by the browser's error.
    if (connection) connection.delayCanceller?.();
    else location.reload();
  });

  // The slider loads the state at its entry when it stops moving.
  let pause = 0;
  let moved = false;
  document.addEventListener("input", (event) => {
    const slider = event.target.closest("input[data-slider]");
    if (!slider) return;
    const shown = document.getElementById(slider.dataset.slider);
    if (shown) shown.textContent = slider.value;
    moved = slider.value !== slider.max;
    clearTimeout(pause);
    pause = setTimeout(() => slider.form.requestSubmit(), 120);
  });

  // Show times in the browser's time zone, also after each refresh, which restores the server's text.
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const describeAge = (seconds, moment) => {
    if (seconds < 60) return "just now";
    if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
    if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
    if (seconds < 2592000) return `${Math.floor(seconds / 86400)} d ago`;
    return moment.toLocaleDateString("en-CA");
  };
  const write = (element, text) => { if (element.textContent !== text) element.textContent = text; };
  const showTimes = () => {
    for (const time of document.querySelectorAll("time[data-ago]")) {
      const moment = new Date(time.dateTime);
      write(time, describeAge((Date.now() - moment) / 1000, moment));
      time.title = moment.toLocaleString();
    }
    for (const time of document.querySelectorAll("time[data-local]")) {
      write(time, new Date(time.dateTime).toLocaleString("en-CA", { dateStyle: "short", timeStyle: "short", hourCycle: "h23" }).replace(",", ""));
    }
    for (const label of document.querySelectorAll("text[data-hour]")) {
      write(label, new Date(label.dataset.hour).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" }));
    }
    for (const element of document.querySelectorAll("[data-zone]")) write(element, zone);
  };
  showTimes();
  setInterval(showTimes, 20000);
  for (const field of document.querySelectorAll("[data-zone-field]")) field.value = zone;

  // The bar of the inbox counts the selected approvals.
  const countMarked = () => {
    const shown = document.querySelector("[data-mark-count]");
    if (!shown) return;
    const all = document.querySelectorAll("input[form=many][name=approval]");
    const marked = [...all].filter((each) => each.checked).length;
    write(shown, marked ? `${marked} of ${all.length} selected` : "Select approvals to decide them together");
    for (const button of document.querySelectorAll("#many button[name]")) button.disabled = !marked;
    const every = document.querySelector("[data-mark-all]");
    every.hidden = false;
    write(every, marked === all.length ? "Select none" : "Select all");
  };
  countMarked();
  document.addEventListener("change", (event) => { if (event.target.matches("input[form=many]")) countMarked(); });
  document.addEventListener("click", (event) => {
    if (!event.target.closest("[data-mark-all]")) return;
    const all = [...document.querySelectorAll("input[form=many][name=approval]")];
    const isNew = !all.every((each) => each.checked);
    for (const each of all) each.checked = isNew;
    countMarked();
  });

  // The tree of a run: the selected row opens next to it and is part of the page's URL.
  const getTree = () => document.getElementById("tree");
  const getChosen = () => new URLSearchParams(location.search).get("step");
  const markRow = (address) => {
    for (const row of getTree().querySelectorAll("a.line")) {
      if (row.dataset.step !== address) { row.removeAttribute("aria-current"); continue; }
      row.setAttribute("aria-current", "true");
      for (let up = row.parentElement.closest("details"); up; up = up.parentElement.closest("details")) up.open = true;
    }
  };
  const scrollToRow = () => {
    const tree = getTree();
    // On a small screen the tree doesn't scroll on its own, and the details are above it.
    if (tree.scrollHeight > tree.clientHeight) tree.querySelector("a.line[aria-current]")?.scrollIntoView({ block: "nearest" });
  };
  const openRow = (address) => {
    const tree = getTree();
    const detail = document.getElementById("detail");
    markRow(address);
    scrollToRow();
    // Keep the selected row while the tree is refreshed.
    detail.setAttribute("data-keep", "");
    tree.closest(".panes").classList.add("chosen");
    htmx.ajax("GET", `${tree.dataset.base}/step?key=${encodeURIComponent(address)}`, { source: detail, target: "#step", swap: "outerHTML" })
      .then(() => { detail.scrollTop = 0; });
  };
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-step]");
    if (!link || !getTree() || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    history.pushState(null, "", `${getTree().dataset.base}?step=${encodeURIComponent(link.dataset.step)}`);
    openRow(link.dataset.step);
    if (matchMedia("(max-width: 1080px)").matches) document.getElementById("detail").scrollIntoView({ block: "start" });
  });
  window.addEventListener("popstate", () => {
    if (!getTree()) return;
    if (getChosen()) openRow(getChosen());
    else location.reload();
  });
  // Arriving text: the model's reply and the output of running steps.
  document.getElementById("live")?.addEventListener("partial", (event) => {
    const draft = document.getElementById("draft");
    if (!draft) return;
    const { text, outputs } = JSON.parse(event.detail.data);
    const tree = getTree();
    const isAtEnd = tree.scrollHeight - tree.scrollTop - tree.clientHeight < 60;
    const parts = [...(text ? [["writing", text]] : []), ...Object.entries(outputs).map(([step, output]) => [`output of ${step}`, output])];
    draft.replaceChildren(...parts.map(([name, content]) => {
      const part = document.createElement("div");
      const label = document.createElement("b");
      label.className = "live";
      label.textContent = name;
      part.append(label, content);
      part.dir = "auto";
      return part;
    }));
    draft.hidden = !parts.length;
    if (isAtEnd) tree.scrollTop = tree.scrollHeight;
    draft.scrollTop = draft.scrollHeight;
  });
  const find = document.getElementById("find");
  const findRows = () => {
    const word = find.value.trim().toLowerCase();
    let count = 0;
    for (const turn of getTree().querySelectorAll("details.turn")) {
      let inside = 0;
      for (const row of turn.querySelectorAll("a.line, .noted")) {
        const matches = row.textContent.toLowerCase().includes(word);
        row.classList.toggle("unmatched", !matches);
        inside += matches;
      }
      turn.classList.toggle("unmatched", !inside);
      count += inside;
    }
    write(document.getElementById("find-count"), word ? `${count} found` : "");
  };
  if (find) {
    for (const each of document.querySelectorAll("#find, [data-fold]")) each.hidden = false;
    find.addEventListener("input", findRows);
    find.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { find.value = ""; findRows(); find.blur(); return; }
      if (event.key !== "Enter") return;
      const rows = [...getTree().querySelectorAll("a.line:not(.unmatched)")];
      const at = rows.findIndex((row) => row.hasAttribute("aria-current"));
      const next = rows[(at + (event.shiftKey ? rows.length - 1 : 1)) % rows.length] || rows[0];
      if (next) next.click();
      event.preventDefault();
    });
    document.addEventListener("click", (event) => {
      const fold = event.target.closest("[data-fold]");
      if (!fold) return;
      for (const turn of getTree().querySelectorAll("details.turn")) turn.open = fold.dataset.fold === "open";
    });
    if (getChosen()) { markRow(getChosen()); scrollToRow(); }
  }
  document.addEventListener("htmx:after:swap", () => {
    showTimes();
    countMarked();
    if (!getTree()) return;
    if (getChosen()) markRow(getChosen());
    if (find && find.value) findRows();
  });

  // While the run continues, extend the slider. If it was at the end, move it to the new end.
  const body = document.getElementById("body");
  const range = document.getElementById("k");
  if (body && range) {
    new MutationObserver(() => {
      const total = document.getElementById("body").dataset.entries;
      if (!total || total === range.max) return;
      // Not while the user types into the fork form there.
      const isLast = range.value === range.max && !moved && !document.getElementById("moment").contains(document.activeElement);
      range.max = total;
      document.getElementById("k-total").textContent = total;
      if (isLast) {
        range.value = total;
        document.getElementById("k-shown").textContent = total;
        clearTimeout(pause);
        pause = setTimeout(() => range.form.requestSubmit(), 600);
      }
    }).observe(document.getElementById("main"), { subtree: true, attributes: true, attributeFilter: ["data-entries"], childList: true });
  }

  const prefix = document.querySelector("a.brand").getAttribute("href").replace(/\/$/, "");
  const places = { i: "/", r: "/runs", c: "/chat", t: "/tasks" };
  let isPrefixed = false;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select, dialog")) return;
    const key = event.key;
    if (isPrefixed) {
      isPrefixed = false;
      if (places[key]) location.assign(prefix + places[key]);
      return;
    }
    if (key === "g") { isPrefixed = true; setTimeout(() => { isPrefixed = false; }, 1500); return; }
    if (key === "?") { document.getElementById("keys").showModal(); event.preventDefault(); return; }
    if (key === "/") {
      const search = document.querySelector("input[type=search]");
      if (search) { search.focus(); event.preventDefault(); }
      return;
    }
    if (key === "j" || key === "k") {
      const rows = [...document.querySelectorAll("main article, main tr.row-link, main .tree a.line")];
      if (!rows.length) return;
      const at = rows.findIndex((row) => row.contains(document.activeElement));
      const next = rows[Math.min(rows.length - 1, Math.max(0, at + (key === "j" ? 1 : -1)))];
      const target = next.matches("a") ? next : next.querySelector("a, button, input") || next;
      target.focus();
      next.scrollIntoView({ block: "nearest" });
      event.preventDefault();
    }
  });
})();
