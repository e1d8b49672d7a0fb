package e2e

import (
	"path/filepath"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func TestServicesOfAComposeFileGetTheirFilesAndFindThePrimary(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "shop", map[string]string{
		"db/password.txt": "sesame", "web/html/index.html": "hello", "web/conf": "conf of web",
		"compose.yaml": `
services:
  backend:
    image: ` + harness.ImageBusybox + `
    x-agbox: primary
    secrets: [db-password]
    command: httpd -f -p 8000 -h /run/secrets
  web:
    image: ` + harness.ImageBusybox + `
    entrypoint: [sh, -c, "cp /run/secrets/db-password /var/www/html/secret; cp /etc/web/conf /var/www/html/; exec httpd -f -p 80 -h /var/www/html"]
    secrets: [db-password]
    volumes: ["./web/html:/var/www/html:ro", "./web/conf:/etc/web/conf"]
  client:
    image: ` + harness.ImageBusybox + `
    entrypoint: sh -c
    command: ["until wget -q -O /tmp/got http://backend:8000/db-password; do sleep 0.1; done; exec httpd -f -p 80 -h /tmp"]
secrets:
  db-password: {file: db/password.txt}
`,
	})
	in.Must(t, "create", "demo", "--trust", "--compose", filepath.Join(dir, "compose.yaml"))
	fetch := func(url, want string) {
		t.Helper()
		in.Agbox(t, "exec", "demo", "--", "sh", "-c", "until wget -q -O - "+url+" 2>/dev/null; do sleep 0.1; done").Want(t, 0).WantOutput(t, want, "")
	}
	fetch("http://web/index.html", "hello")
	fetch("http://web/conf", "conf of web")
	fetch("http://web/secret", "sesame")
	fetch("http://client/got", "sesame")
	// What a service wrote stays in it, also when the sandbox is started again.
	in.Must(t, "stop", "demo")
	in.write(t, "shop", map[string]string{"web/html/index.html": "changed"})
	in.Must(t, "start", "demo")
	fetch("http://web/index.html", "hello")
}
