"use strict";
(function () {
  var tip = document.getElementById("tip");
  function show(mark) {
    tip.textContent = mark.getAttribute("data-tip");
    tip.hidden = false;
    var at = mark.getBoundingClientRect(), own = tip.getBoundingClientRect();
    var left = Math.min(Math.max(4, at.left + at.width / 2 - own.width / 2), innerWidth - own.width - 4);
    var top = at.top - own.height - 8;
    tip.style.left = left + "px";
    tip.style.top = (top < 4 ? at.bottom + 8 : top) + "px";
  }
  function hide() { tip.hidden = true; }
  document.querySelectorAll(".mark").forEach(function (mark) { mark.setAttribute("aria-label", mark.getAttribute("data-tip")); });
  function markOf(event) { return event.target.closest ? event.target.closest(".mark") : null; }
  document.addEventListener("pointerover", function (event) { var mark = markOf(event); if (mark) { show(mark); } else { hide(); } });
  document.addEventListener("focusin", function (event) { var mark = markOf(event); if (mark) { show(mark); } else { hide(); } });
  document.addEventListener("click", function (event) { var mark = markOf(event); if (mark) { show(mark); } });
  addEventListener("scroll", hide, { passive: true });
  document.addEventListener("keydown", function (event) {
    if (event.key === "Escape") { hide(); return; }
    var chart = event.target.closest ? event.target.closest("svg.chart") : null;
    var step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!chart || !step) { return; }
    var marks = Array.prototype.slice.call(chart.querySelectorAll(".mark"));
    var next = marks.indexOf(document.activeElement) + step;
    if (marks.length) { marks[(next + marks.length) % marks.length].focus(); event.preventDefault(); }
  });
  var theme = document.getElementById("theme");
  theme.addEventListener("click", function () {
    var root = document.documentElement, now = root.getAttribute("data-theme");
    var dark = now ? now === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.setAttribute("data-theme", dark ? "light" : "dark");
  });
  document.querySelectorAll("input[data-rows]").forEach(function (slider) {
    var rows = JSON.parse(slider.getAttribute("data-rows")), out = document.getElementById(slider.getAttribute("data-out"));
    var cursor = slider.hasAttribute("data-chart") ? slider.closest("section").querySelector(".cursor") : null;
    function tell() {
      out.textContent = rows[Number(slider.value)];
      if (!cursor) { return; }
      var x = 60 + Number(slider.value) / Number(slider.max) * 648;
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
    }
    slider.addEventListener("input", tell);
    tell();
  });
})();
