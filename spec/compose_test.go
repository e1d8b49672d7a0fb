package spec

import (
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestFilesThatAComposeFileIncludesAreRead(t *testing.T) {
	req := base("/project/compose.yaml", `
include: [db.yml, {path: [cache.yml, db.yml]}]
services:
  web: {image: x, x-agbox: primary, depends_on: [db], secrets: [key]}
`, nil)
	db := described("db.yml", "/project/db.yml", "include: [compose.yaml, cache.yml]\nservices: {db: {image: \"${DB}\", environment: {A: b}}}\nsecrets: {key: {file: key.txt}}\n")
	db.Variables = map[string]string{"DB": "postgres"}
	req.BaseFiles[0].Files = []*agboxv1.NamedFile{db, described("cache.yml", "/project/cache.yml", "services: {cache: {image: redis}}\n")}
	wantYAML(t, good(t, req), `
image: x
hostname: web
copies: ["/project/key.txt:/run/secrets/key"]
services:
  - {name: db, image: postgres, envs: {A: b}}
  - {name: cache, image: redis}
`)
	if at := resolve(t, req).Origin("services", 0, "image"); at.File != "/project/db.yml" || at.Line != 2 {
		t.Errorf("the image of db is from %s:%d", at.File, at.Line)
	}
}

func TestOnlyFilesBesideAComposeFileAreIncluded(t *testing.T) {
	req := base("/project/compose.yaml", `
include: [sub/a.yml, ../b.yml, missing.yml, {path: same.yml, env_file: x.env, project_directory: sub}]
services: {web: {image: x, x-agbox: primary}}
`, nil)
	req.BaseFiles[0].Files = []*agboxv1.NamedFile{described("same.yml", "/project/same.yml", "services: {web: {image: y}}\n")}
	says(t, "problem", resolve(t, req).Problems, "include[0]: \"sub/a.yml\" is in another folder", "include[1]: \"../b.yml\" is in another folder",
		"include[2]: The file /project/missing.yml did not come", "include[3]: Service web is in this file and in an included one",
		"include[3].env_file: env_file of an included file is not supported", "include[3].project_directory: project_directory of an included file")
}
