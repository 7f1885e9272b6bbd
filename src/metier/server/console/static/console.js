// Comfort only: every page works without it, except that it does not update by itself.
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

  // A page whose stream is broken must not look alive: say so, stop what moves, and let the user retry at once.
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
    // The first request of the stream is an ordinary one; nothing repeats it.
    document.addEventListener(failure, (event) => {
      const failed = event.detail.ctx?.sourceElement;
      if (failed && failed.id === "live") showOffline();
    });
  }
  window.addEventListener("offline", showOffline);
  window.addEventListener("online", () => connection?.delayCanceller ? connection.delayCanceller() : hideOffline());
  document.getElementById("offline-retry").addEventListener("click", () => {
    if (connection?.delayCanceller) connection.delayCanceller();
    else location.reload();
  });

  // The slider asks for the state at the entry that it stands at, once it has come to rest.
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

  // A run that goes on has more entries than the slider knew. One that stood at the end is there again when it is over.
  const body = document.getElementById("body");
  const range = document.getElementById("k");
  if (body && range) {
    new MutationObserver(() => {
      const total = document.getElementById("body").dataset.entries;
      if (!total || total === range.max) return;
      // Not while a person writes into the form of a fork there.
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
  let begun = false;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select, dialog")) return;
    const key = event.key;
    if (begun) {
      begun = false;
      if (places[key]) location.assign(prefix + places[key]);
      return;
    }
    if (key === "g") { begun = true; setTimeout(() => { begun = false; }, 1500); return; }
    if (key === "?") { document.getElementById("keys").showModal(); event.preventDefault(); return; }
    if (key === "/") {
      const search = document.querySelector("input[type=search]");
      if (search) { search.focus(); event.preventDefault(); }
      return;
    }
    if (key === "j" || key === "k") {
      const rows = [...document.querySelectorAll("main article, main tr.row-link, main .fall summary")];
      if (!rows.length) return;
      const at = rows.findIndex((row) => row.contains(document.activeElement));
      const next = rows[Math.min(rows.length - 1, Math.max(0, at + (key === "j" ? 1 : -1)))];
      const target = next.matches("summary") ? next : next.querySelector("a, button, input") || next;
      target.focus();
      next.scrollIntoView({ block: "nearest" });
      event.preventDefault();
    }
  });
})();
