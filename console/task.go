package console

var taskPages = []route{
	{"GET tasks", "tasks", (*page).tasks},
	{"GET tasks/{id}", "tasks", (*page).task},
}

// tasks lists the tasks, the newest first.
func (p *page) tasks() error {
	list, err := p.api.Tasks(p.ctx, p.Param("status"), p.now())
	if err != nil {
		return err
	}
	return p.show("tasks", "Tasks", list)
}

// task shows one task and its progress.
func (p *page) task() error {
	t, err := p.api.Task(p.ctx, p.r.PathValue("id"), p.now())
	if err != nil {
		return err
	}
	return p.show("task", "Task "+short(t.ID), t)
}
