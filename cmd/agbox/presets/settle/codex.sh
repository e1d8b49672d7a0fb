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
    # Its background server would copy 400 MB into the home, outlive the agent, and update itself.
    printf '[features]\ndaemon_auto_start = false\n[notice]\nhide_full_access_warning = true\n[projects."%s"]\ntrust_level = "%s"\n' "$here" "$trust"
  } >~/.codex/config.toml
elif [ -n "$off" ]; then
  # A config that is there may trust the folder. Its table of the folder is replaced.
  table="[projects.\"$here\"]"
  {
    skip=
    while IFS= read -r line || [ -n "$line" ]; do
      case $line in "$table"*) skip=yes ;; "["*) skip= ;; esac
      if [ -z "$skip" ]; then printf '%s\n' "$line"; fi
    done <~/.codex/config.toml
    printf '%s\ntrust_level = "untrusted"\n' "$table"
  } >~/.codex/config.toml.new && mv -f ~/.codex/config.toml.new ~/.codex/config.toml || { echo "The folder cannot be marked as untrusted in ~/.codex/config.toml."; exit 1; }
fi
if [ ! -e ~/.codex/auth.json ] && [ -n "${OPENAI_API_KEY:-}" ] && command -v codex >/dev/null; then
  said=$(printf %s "$OPENAI_API_KEY" | codex login --with-api-key 2>&1) || { echo "$said"; exit 1; }
fi
