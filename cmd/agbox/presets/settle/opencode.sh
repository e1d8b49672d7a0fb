mkdir -p ~/.config/opencode
if [ ! -e ~/.config/opencode/opencode.json ]; then
  if [ -n "$ask" ]; then permission='{"edit": "ask", "bash": "ask", "webfetch": "ask"}'; else permission='{"*": "allow"}'; fi
  echo '{"autoupdate": false, "share": "disabled", "permission": '"$permission"'}' >~/.config/opencode/opencode.json
fi
