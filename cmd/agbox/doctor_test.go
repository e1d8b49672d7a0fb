package main

import (
	"context"
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Doctor returns one finding of each kind. With fix set it performs the actions that are
// possible.
func (d *scripted) Doctor(_ context.Context, in *agboxv1.DoctorRequest) (*agboxv1.DoctorResponse, error) {
	out := &agboxv1.DoctorResponse{OtherInstallContainers: 2, Findings: []*agboxv1.DoctorFinding{
		{Action: agboxv1.DoctorAction_DOCTOR_ACTION_LEAVE, Kind: agboxv1.DoctorKind_DOCTOR_KIND_DATABASE, Name: "/data/ids.db", Why: "It is open and sound."},
		{Action: agboxv1.DoctorAction_DOCTOR_ACTION_LEAVE, Kind: agboxv1.DoctorKind_DOCTOR_KIND_SANDBOX_RECORD, Id: "first1", SandboxId: "first1", Why: "It is ready."},
	}}
	if len(d.boxes) == 0 {
		return out, nil
	}
	out.Findings = append(out.Findings, &agboxv1.DoctorFinding{
		Action: agboxv1.DoctorAction_DOCTOR_ACTION_REMOVE, Kind: agboxv1.DoctorKind_DOCTOR_KIND_CONTAINER, Name: "stray\x1b[2J", Id: "0123", SandboxId: "gone",
		Why: "It belongs to no sandbox that exists.", Done: in.GetFix(),
	})
	if d.boxes[0].GetName() == "demo" {
		out.Findings = append(out.Findings,
			&agboxv1.DoctorFinding{
				Action: agboxv1.DoctorAction_DOCTOR_ACTION_LEAVE, Kind: agboxv1.DoctorKind_DOCTOR_KIND_NETWORK, Name: "agbox-net-first1", SandboxId: "first1",
				Why: "Somebody removed it.", NeedsPerson: true,
			},
			&agboxv1.DoctorFinding{
				Action: agboxv1.DoctorAction_DOCTOR_ACTION_REPAIR, Kind: agboxv1.DoctorKind_DOCTOR_KIND_SANDBOX_RECORD, Name: "b", SandboxId: "second2",
				Why: "Its container is gone.", Error: "the daemon has not come to it yet",
			})
	}
	return out, nil
}

func TestDoctorReads(t *testing.T) {
	_, socket := serveScripted(t)
	look := func(name string, code int, args ...string) {
		t.Helper()
		got, out, errs := agbox(t, socket, append([]string{"doctor"}, args...)...)
		if got != code || errs != "" {
			t.Errorf("%s: code %d, want %d; stderr %q", name, got, code, errs)
		}
		golden(t, name, out)
	}
	look("help-doctor", 0, "--help")
	look("doctor-well", 0)
	agbox(t, socket, "create", "--id", "first1", "plain", "--image", "good")
	look("doctor-todo", 1)
	look("doctor-done", 0, "--fix")
	look("doctor-json", 0, "--fix", "-o", "json")
}

func TestDoctorTellsWhatNeedsAPersonThoughItFixes(t *testing.T) {
	_, socket := serveScripted(t)
	agbox(t, socket, "create", "--id", "first1", "demo", "--image", "good")
	code, out, _ := agbox(t, socket, "doctor", "--fix")
	if code != 1 {
		t.Errorf("code %d", code)
	}
	golden(t, "doctor-person", out)
}

func TestDoctorLooksNowhereElseForAGivenSocket(t *testing.T) {
	code, out, errs := agbox(t, shortDir(t)+"/none.sock", "doctor")
	if code != codeNoDaemon || out != "" || !strings.Contains(errs, "none.sock") {
		t.Errorf("code %d, stdout %q, stderr %q", code, out, errs)
	}
}
