mkdir -p ~/.gemini
if [ ! -e ~/.gemini/settings.json ]; then
  login=oauth-personal
  if [ -n "${GEMINI_API_KEY:-}" ]; then login=gemini-api-key; fi
  cat >~/.gemini/settings.json <<END
{"general": {"enableAutoUpdate": false, "enableAutoUpdateNotification": false},
 "security": {"folderTrust": {"enabled": false}, "auth": {"selectedType": "$login"}}}
END
fi
