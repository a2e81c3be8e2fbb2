"""How the page of a report looks, by day, by night and on a phone, and what it does when a box of
the drawn model is pointed at."""

STYLE = """
:root{color-scheme:light dark;--ink:#111827;--soft:#6b7280;--line:#e5e7eb;--paper:#fff;
--sheet:#fff;--shade:0 6px 24px rgb(0 0 0/.18)}
@media(prefers-color-scheme:dark){:root{--ink:#e5e7eb;--soft:#9ca3af;--line:#293145;
--paper:#0b1020;--sheet:#151c30;--shade:0 6px 24px rgb(0 0 0/.7)}}
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,sans-serif;margin:0;color:var(--ink);background:var(--paper)}
main{max-width:84rem;margin:0 auto;padding:1.5rem 1rem 6rem}
h1{font-size:1.5rem;margin:.2rem 0 1rem;overflow-wrap:anywhere}
h2{font-size:1.1rem;margin:2rem 0 .6rem}
.figures{display:flex;flex-wrap:wrap;gap:.6rem;margin:0 0 1rem}
.figures div{border:1px solid var(--line);border-radius:8px;padding:.4rem .9rem}
.figures dt{font-size:12px;color:var(--soft)}
.figures dd{margin:0;font-size:1.15rem;font-weight:600}
.graph{overflow-x:auto;border:1px solid var(--line);border-radius:8px}
.graph svg{display:block;margin:0 auto}
.bt-box{cursor:pointer;outline:none}
.bt-box:focus rect,.bt-box:hover rect{stroke-width:2.5}
.asked .bt-way{opacity:.15}
.asked .bt-way.lit{opacity:1}
.legend{display:flex;flex-wrap:wrap;gap:.3rem 1.4rem;list-style:none;padding:0;margin:.8rem 0 .3rem;
font-size:13px}
.legend li{display:flex;align-items:center;gap:.5rem}
.legend svg{flex:none}
code{font-size:.92em}
.hint{color:var(--soft);font-size:13px;margin:0}
.card{position:fixed;z-index:9;max-width:26rem;background:var(--sheet);border-radius:10px;
border:1px solid var(--line);box-shadow:var(--shade);padding:.7rem 1rem;font-size:13px;
pointer-events:none}
.card b{font-family:ui-monospace,monospace;overflow-wrap:anywhere}
.card dl{display:grid;grid-template-columns:auto 1fr;gap:.1rem .8rem;margin:.4rem 0 0}
.card dt{color:var(--soft)}
.card dd{margin:0;overflow-wrap:anywhere}
table{border-collapse:collapse;font-size:14px;width:100%}
td,th{text-align:left;padding:.35rem .8rem .35rem 0;border-bottom:1px solid var(--line);
vertical-align:top}
th{color:var(--soft);font-weight:500}
td:nth-child(-n+2){font-family:ui-monospace,monospace;font-size:13px}
td:nth-child(n+4),th:nth-child(n+4){white-space:nowrap;text-align:right}
li{margin:.3rem 0;overflow-wrap:anywhere}
@media(max-width:44rem){
.card{left:.5rem!important;right:.5rem;top:auto!important;bottom:.5rem;max-width:none}
thead{display:none}
tr{display:block;border:1px solid var(--line);border-radius:8px;padding:.5rem .8rem;margin:.6rem 0}
td{display:grid;grid-template-columns:6.5rem 1fr;border:0;padding:.12rem 0;overflow-wrap:anywhere}
td:nth-child(n){text-align:left;white-space:normal}
td::before{content:attr(data-head);color:var(--soft);font-family:system-ui,sans-serif}
}
"""

SCRIPT = """
(function () {
  var image = document.querySelector('.graph svg'), open = null
  function close() {
    if (open) open.hidden = true
    open = null
    image.classList.remove('asked')
  }
  function show(box) {
    close()
    var name = box.dataset.node, at = box.getBoundingClientRect()
    open = document.getElementById('of-' + name)
    open.hidden = false
    var left = Math.min(at.left, innerWidth - open.offsetWidth - 12), top = at.bottom + 10
    if (top + open.offsetHeight > innerHeight) top = Math.max(at.top - open.offsetHeight - 10, 8)
    open.style.left = Math.max(left, 8) + 'px'
    open.style.top = top + 'px'
    image.classList.add('asked')
    var here = [name, box.dataset.on]
    image.querySelectorAll('.bt-way').forEach(function (way) {
      way.classList.toggle('lit', here.includes(way.dataset.from) || here.includes(way.dataset.to))
    })
  }
  image.querySelectorAll('title').forEach(function (title) {
    if (title.parentNode.dataset.node) title.remove()
  })
  image.querySelectorAll('.bt-box').forEach(function (box) {
    box.addEventListener('pointerenter', function () { show(box) })
    box.addEventListener('focus', function () { show(box) })
    box.addEventListener('pointerleave', close)
    box.addEventListener('blur', close)
    box.addEventListener('click', function (event) { event.stopPropagation(); show(box) })
  })
  document.addEventListener('click', close)
  document.addEventListener('scroll', close, true)
  document.addEventListener('keydown', function (event) { if (event.key === 'Escape') close() })
})()
"""
