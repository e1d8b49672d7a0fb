mkdir -p ~/.claude
if [ ! -e ~/.claude.json ]; then
  # A person would be asked whether to use a key: these are its last characters.
  key=$(printf %s "${ANTHROPIC_API_KEY:-}" | tail -c 20)
  cat >~/.claude.json <<END
{"hasCompletedOnboarding": true, "autoUpdates": false, "hasSeenAutoDefaultNudge": true,
 "customApiKeyResponses": {"approved": ["$key"], "rejected": []},
 "projects": {"$here": {"hasTrustDialogAccepted": true, "hasCompletedProjectOnboarding": true}}}
END
fi
if [ -z "$ask" ] && [ ! -e ~/.claude/settings.json ]; then
  echo '{"permissions": {"defaultMode": "bypassPermissions"}, "skipDangerousModePermissionPrompt": true}' >~/.claude/settings.json
fi
