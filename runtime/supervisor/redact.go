package supervisor

import (
	"github.com/agbox/agbox/logs"
	guestv1 "github.com/agbox/agbox/proto/guestlite/v1"
)

// redactorOf returns what takes the values of secret variables out of the log of an exec; nil
// if there are none. The daemon tells only names: no file inside has a value because of it.
func (s *Supervisor) redactorOf(req *guestv1.StartRequest) *logs.Redactor {
	switch {
	case req.GetShowSecrets():
		return nil
	case len(req.GetSecretEnvs()) == 0:
		return s.redactor // commands without secrets of their own share one
	}
	return logs.NewRedactor(append(valuesOf(s.cfg.Env, s.cfg.Boot.GetSecretEnvs()), valuesOf(req.GetEnv(), req.GetSecretEnvs())...))
}

// valuesOf returns the values of variables.
func valuesOf(env, names []string) []string {
	var values []string
	for _, name := range names {
		values = append(values, variable(env, name))
	}
	return values
}
