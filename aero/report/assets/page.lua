-- Dresses what the page marks by classes for the printed page: each class becomes a call of the function of the same
-- meaning in page.typ.
local spans = {
  published = "published", paper_dimensions = "paper-dimensions", smaller_scale = "smaller-scale", missing = "missing",
  none = "none-mark", projected = "projected", where = "where", mark = "mark", ratio = "ratio", quiet = "where",
}

local function call(name, content, kind)
  local open, close = pandoc.RawInline("typst", "#" .. name .. "["), pandoc.RawInline("typst", "]")
  if kind == "block" then
    open, close = pandoc.RawBlock("typst", "#" .. name .. "["), pandoc.RawBlock("typst", "]")
  end
  local out = { open }
  for _, item in ipairs(content) do out[#out + 1] = item end
  out[#out + 1] = close
  return out
end

function Span(element)
  element.attributes = {}
  for _, class in ipairs(element.classes) do
    if class == "verdict" then
      local words = element.classes[2] or ""
      return call('verdict("' .. words .. '")', element.content)
    end
    -- On paper a number is no link: its table's line below names the file.
    if element.classes:includes("num") then
      element = element:walk({ Link = function(link) return link.content end })
    end
    if spans[class] then return call(spans[class], element.content) end
  end
end

function Div(element)
  for _, class in ipairs({ "caption", "legend", "source", "gaps" }) do
    if element.classes:includes(class) then return call(class, element.content, "block") end
  end
  if element.classes:includes("outline") then return pandoc.RawBlock("typst", "#contents()") end
  if element.classes:includes("table") then
    return call(element.classes:includes("dense") and "dense" or "plain", element.content, "block")
  end
  if element.classes:includes("figure") then return call("drawing", element.content, "block") end
  return element.content
end

function Header(element)
  element.classes = {}
  element.attributes = {}
  return element
end
