import sqlite3

base = sqlite3.connect("base.db")
print(base.execute("pragma journal_mode=wal").fetchall())
base.execute("create table t(a)")
base.executemany("insert into t values(?)", [(n,) for n in range(100)])
base.commit()
print(base.execute("select sum(a) from t").fetchone())
base.execute("vacuum")
base.close()
