// Before the page is drawn: the theme that was chosen last; without a choice the system's holds.
(() => {
  try {
    const chosen = localStorage.getItem("hoss-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // Storage is forbidden here: the system's theme it is.
  }
})();
