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

  // The slider asks for the state at the entry that it stands at, once it has come to rest.
  let pause = 0;
  document.addEventListener("input", (event) => {
    const slider = event.target.closest("input[data-slider]");
    if (!slider) return;
    const shown = document.getElementById(slider.dataset.slider);
    if (shown) shown.textContent = slider.value;
    clearTimeout(pause);
    pause = setTimeout(() => slider.form.requestSubmit(), 120);
  });

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
