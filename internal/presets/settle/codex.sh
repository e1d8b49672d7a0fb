mkdir -p ~/.codex
if [ ! -e ~/.codex/config.toml ]; then
  # The sandbox of agbox is the protection: bubblewrap does not work in it.
  trust=trusted
  if [ -n "$off" ]; then trust=untrusted; fi
  {
    echo 'check_for_update_on_startup = false'
    echo 'sandbox_mode = "danger-full-access"'
    if [ -n "$ask" ]; then echo 'approval_policy = "untrusted"'; else echo 'approval_policy = "never"'; fi
    if [ -n "${OPENAI_BASE_URL:-}" ]; then echo "openai_base_url = \"$OPENAI_BASE_URL\""; fi
    printf '[notice]\nhide_full_access_warning = true\n[projects."%s"]\ntrust_level = "%s"\n' "$here" "$trust"
  } >~/.codex/config.toml
fi
if [ ! -e ~/.codex/auth.json ] && [ -n "${OPENAI_API_KEY:-}" ] && command -v codex >/dev/null; then
  said=$(printf %s "$OPENAI_API_KEY" | codex login --with-api-key 2>&1) || { echo "$said"; exit 1; }
fi
