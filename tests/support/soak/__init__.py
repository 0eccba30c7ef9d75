"""The soak: one service for a long time, many clients, and trouble. `python -m support.soak --minutes 60`.

`questions`  the right answers, computed once by mlx-lm with every expert resident
`service`    the service as a process: started, killed, asked, inspected
`asker`      a client that asks, misbehaves as clients do, and checks every answer
`trouble`    what happens to the service: kills, stops, sizes
`schedule`   when something is due
`pauses`     how long clients waited
`idle`       what must hold whenever nothing is asked
`samples`    figures over time, and whether memory grows
`picture`    those figures as SVG
`run`        all of it together
"""
